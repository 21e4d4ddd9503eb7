"""CoDID and its parts."""

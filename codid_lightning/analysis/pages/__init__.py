"""HTML pages that need no other file."""

"""Everything that can be trained: CoDID, its parts, and the methods it is compared with."""

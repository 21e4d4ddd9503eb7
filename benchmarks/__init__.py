"""Programs that measure; each says what it prints."""

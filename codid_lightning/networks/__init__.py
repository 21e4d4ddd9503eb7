"""Networks of the paper's architecture table."""

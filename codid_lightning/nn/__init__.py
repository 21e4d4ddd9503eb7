"""Networks, the optimizer and the distributed operations they need."""

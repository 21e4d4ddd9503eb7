"""A callback that draws figures while a run trains, and where it sends them."""

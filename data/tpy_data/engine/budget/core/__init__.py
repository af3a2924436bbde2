"""The decisions of the memory budget, without I/O."""

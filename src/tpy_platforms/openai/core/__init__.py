"""Parts without I/O: the calls of tools in a text that comes in pieces."""

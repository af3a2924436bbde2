"""The servers that are measured: how each is started, what it serves, how it is ended."""

"""The decisions of a search for a configuration, without clocks, sockets and files: which configurations there are, which is
measured next, which is better, and how measured rows are kept as text."""

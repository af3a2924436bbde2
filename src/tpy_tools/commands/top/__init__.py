"""`tpy top`: a live table of the models of a running server.

`core` makes rows of two snapshots, and lines of rows; `source` takes snapshots over HTTP; `screen` has the terminal.
"""

SORT_NAMES = ("rate", "errors", "queue", "batch", "mean", "p50", "p99", "busy", "memory", "name", "state")
"""The keys that rows can be sorted by. Here, because the command line knows them before anything else is imported."""

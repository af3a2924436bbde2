"""Names that users rely on, each kind in a file: flags with defaults, routes, metrics with labels, parameters of models, names in
Python. See docs/reference/stability.md."""

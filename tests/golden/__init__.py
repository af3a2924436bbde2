"""Names that users rely on, each kind in a file: flags, routes, metrics, Python names. See docs/reference/stability.md."""

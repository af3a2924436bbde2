"""Requests to engines as values: what was asked for, what it costs, what is answered. `core` is sans-IO."""

"""Logs and metrics of the server."""

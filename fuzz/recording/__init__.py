"""Targets of the recordings of requests."""

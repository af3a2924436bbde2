"""Explains what the engine does with the requests of a model version now, and what to change."""

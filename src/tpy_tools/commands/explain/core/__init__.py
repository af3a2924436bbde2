"""Explanations and traces as lines of text: pure functions."""

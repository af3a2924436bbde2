"""Histories of the response cache: what is kept, and who waits for whom, against naive models."""

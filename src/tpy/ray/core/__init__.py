"""Decisions about all replicas, without I/O: the changes that they share, and one answer from the answers of all."""

"""Channels to instances, and the rate limiter that grants them batches."""

"""Envelopes: forms of requests with rows in them."""

"""The request path of an ensemble."""

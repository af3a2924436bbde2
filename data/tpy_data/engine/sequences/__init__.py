"""The request path of a sequence model."""

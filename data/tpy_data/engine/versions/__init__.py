"""The request path of a model version that has instances."""

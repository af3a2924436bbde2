"""Checks of a request against the configuration of its model, with the tensors that admission adds. Pure."""

"""Which version answers for a name, and the inference service over it."""

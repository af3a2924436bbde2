"""The serving table, which knows the version that answers to a name, and the inference service over it."""

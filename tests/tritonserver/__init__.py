"""The module `tritonserver`."""

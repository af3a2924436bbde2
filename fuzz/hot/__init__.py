"""The native codec against the Python code that is its specification."""

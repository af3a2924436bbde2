"""Published attacks on inference servers, tried on a running one. docs/explanation/security.md lists it."""

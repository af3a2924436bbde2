"""What is known to have been done to inference servers, tried on a running one. docs/explanation/security.md lists it."""

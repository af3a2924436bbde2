"""A test for each published weakness of Triton Inference Server, by its number: the table is in docs/explanation/security.md."""

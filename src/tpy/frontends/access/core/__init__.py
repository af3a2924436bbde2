"""The rules of access, without files, clocks or cryptography."""

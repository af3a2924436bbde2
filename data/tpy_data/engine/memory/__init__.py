"""Watches the memory of the server and of the processes of its instances: how it grows with requests, and whether it leaks."""

"""Fuzzing of the HTTP frontend: the bytes of requests, and inference bodies."""

"""Fuzzing of what the server and a python worker say to each other: frames, tensors, who may speak, and windows."""

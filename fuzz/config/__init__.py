"""Fuzzing of config.pbtxt: documents from the grammar, and documents that are wrong."""

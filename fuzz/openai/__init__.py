"""Fuzzing of the OpenAI frontend."""

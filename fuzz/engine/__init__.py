"""Fuzzing of the cores of the engine: circles of calls, and deadlines."""

"""Fuzzing the decoupled request path: the engine with requests that get any number of responses."""

"""Decides what becomes of a model of another server. Reads and writes nothing: facts in, a Plan out."""

"""Executors: the threads that blocking work runs in, and their stand-in in virtual time."""

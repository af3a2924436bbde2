"""Decides from readings of a process's memory whether it leaks: no clock, no files."""

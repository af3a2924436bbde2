"""Decisions of a replay, without clocks and sockets."""

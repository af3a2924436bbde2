"""Replays of recordings: sends the requests of a file to a server, in order and in time, and compares what comes back.

`core` decides which request is sent when, compares answers and counts; `run` sends with the clients of `tpy_tools.load`.
"""

"""Recordings of requests and their answers: the observer that makes them, and their file format (`core`).

A recording is switched on and off while the server runs, by whoever may call `/v2/recording`; it is written to the folder of
--recording-directory and nowhere else. Without a recording no request has a record for it.
"""

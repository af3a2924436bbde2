"""Clients and tools that were written for Triton, run unchanged against a running server.

Nothing here decides what is right: the tools do. A trial (`registry`) is commands of one tool and the server that they ask; one
whose tool is not installed is skipped, with the reason.
"""

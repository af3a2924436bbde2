"""Errors between the processes."""

from __future__ import annotations


class ProtocolError(Exception):
    """The peer said something that it must not say. The connection, and the frontend process, end."""

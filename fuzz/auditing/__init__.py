"""Histories of the audit log: lines with whatever a client may send."""

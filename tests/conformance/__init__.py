"""Responses to stock clients, compared with transcripts recorded from the real Triton server."""

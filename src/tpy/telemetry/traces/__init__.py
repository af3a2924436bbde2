"""Traces of requests, as Triton takes them: which requests are traced (`core`), and where their traces go."""

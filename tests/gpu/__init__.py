"""Tests that need an NVIDIA GPU: `make test-gpu`. Elsewhere they are skipped, and say why."""

"""Tests of the pytorch backend."""

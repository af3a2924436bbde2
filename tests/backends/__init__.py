"""Tests of the backends, their registry and the conformance suite."""

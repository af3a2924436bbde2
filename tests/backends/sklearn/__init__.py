"""Tests of the sklearn backend."""

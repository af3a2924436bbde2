"""Tests of the fil backend."""

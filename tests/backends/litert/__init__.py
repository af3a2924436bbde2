"""Tests of the litert backend."""

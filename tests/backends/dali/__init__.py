"""Tests of the dali backend."""

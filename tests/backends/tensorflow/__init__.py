"""Tests of the tensorflow backend."""

"""The identity backend: output OUTPUT<n> is input INPUT<n>. For tests and benchmarks; it never touches a file."""

from tpy_data.backends.identity.backend import create

__all__ = ["create"]

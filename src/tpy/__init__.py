"""tpy: a Triton-compatible inference server on structured concurrency.

Start reading at `tpy.assembly` (the nursery tree of the whole server on one screen), then `tpy.services` (what
frontends may ask for), `tpy.state` (what the two planes share) and `tpy.backend` (what a backend must do).
"""

__version__ = "0.1.0"

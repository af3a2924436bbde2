"""Faults for real: a running `tpy serve` with real models, under load over HTTP and gRPC, while something goes wrong around it.

Every scenario says what is promised, breaks something, and counts: every request that was sent is answered rightly, refused with
an error that says why, or (where a connection ended) cut. None is answered wrongly, and none is lost. `python -m tests.chaos`
runs all and prints a line of figures for each; the quick ones are tests as well. The simulation (tests/simulation) tries far more
histories, in virtual time; this one has the kernel, the disk, the processes and the sockets in it.
"""

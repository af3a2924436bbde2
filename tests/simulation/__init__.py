"""Whole-server simulation: real control plane, data plane and frontends, in virtual time, from one seed.

simulate(seed) -> Report        run.py: one run, and what must hold of it
World                           world.py: the server, assembled as `tpy serve` does it, over memory
  Network                       network.py: connections in memory, with buffers that fill up
  SimulatedBackend              backend.py: models that are slow, fail, crash, hang and stream, as drawn from the seed
  Witness                       witness.py: sees every request go in and every answer come out
http_clients, grpc_clients      workloads
operators                       edits of the repository, loads, unloads, faults, jumps of the clock
"""

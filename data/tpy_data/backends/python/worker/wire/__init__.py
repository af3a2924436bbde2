"""The connection between server and worker, as both ends speak it: frames, the layout of tensors, shared memory, one end of a
socket. Read `core/frames.py` (bytes on the socket), `core/session.py` (who may say what when), `core/batch.py` (tensors).
"""

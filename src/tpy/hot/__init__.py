"""The standard forms of requests, answers and frames, read and written by native code (ADR 0034).

`codec` has the functions; `_codec.pyx` is their source, `build` compiles it. Each returns None for what is not in the standard
form. Then the Python code does it, which is the specification, and does all of it where the native codec is not there.
"""

"""Sans-IO: no clock, loop, thread, socket, file, log, randomness."""

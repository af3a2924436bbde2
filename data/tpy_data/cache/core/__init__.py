"""Sans-IO parts of the response cache: no clock, loop, thread, socket, file, log, randomness."""

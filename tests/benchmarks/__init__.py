"""The pure parts of the benchmark program: what it reads and what it computes. No speed is asserted."""

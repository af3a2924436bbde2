"""The decisions of rollouts, without I/O."""

"""End to end: `tpy serve` as a subprocess, stock clients, real models."""

"""Pure functions from what the engine keeps to what it means: no clock, no state."""

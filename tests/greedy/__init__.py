"""A tenant that sends a hundred times as much as another one, on a real server: what the other feels of it. `make greedy`."""

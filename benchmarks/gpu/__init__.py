"""Measures what the server adds to a network on a GPU: `make bench-gpu`. Without a GPU it says so and measures nothing; with
`--rehearse` it goes through everything with a tiny network on the CPU, so that it works the first time that there is one."""

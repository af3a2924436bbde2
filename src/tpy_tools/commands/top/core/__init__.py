"""From two snapshots of a server to rows, and from rows to lines: pure functions, without clock and terminal."""

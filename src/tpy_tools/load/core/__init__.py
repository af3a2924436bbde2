"""The decisions of a load generator, without clocks, sockets or chance: when a request begins, what its latency is, when a
measurement is stable, and the bytes of HTTP/1.1 and of HTTP/2 as a client reads and writes them."""

"""The protocol between server and worker, without sockets: framing, legal messages, and how a batch is laid out."""

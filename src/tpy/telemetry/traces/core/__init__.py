"""The trace settings of the server and of its models, and the choice of the requests that are traced. Free of I/O."""

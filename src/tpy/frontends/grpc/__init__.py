"""The gRPC frontend: Triton's gRPC API on Trio."""

"""The control plane and the data plane in two processes, with nothing between them but the store and the services."""

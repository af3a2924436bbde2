"""The lives of versions, from load to unload, and the reconciler that decides them."""

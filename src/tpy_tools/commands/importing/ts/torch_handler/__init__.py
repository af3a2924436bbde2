"""The handlers that an archive can name without having them."""

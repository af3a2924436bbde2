"""Access: keys, tokens, roles, rates."""

"""MLServer itself beside tpy."""

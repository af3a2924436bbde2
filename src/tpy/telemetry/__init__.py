"""What the server tells people and tools about itself: logs and metrics. Decides formats, never what to serve."""

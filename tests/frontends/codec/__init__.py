"""The HTTP inference codec: recorded exchanges, properties, unit tests."""

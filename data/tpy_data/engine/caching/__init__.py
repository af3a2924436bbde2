"""The response cache in front of a model."""

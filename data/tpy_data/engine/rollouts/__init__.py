"""Rollouts: requests without a version go over to a new version of a model by steps, as long as its gates hold."""

"""MLflow itself beside tpy."""

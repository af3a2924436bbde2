"""The Vertex AI frontend: the routes of health and prediction that the platform names, and by a header most of those of HTTP."""

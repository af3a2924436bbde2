"""`context.metrics`: metrics of a handler, which appear on the server's page of metrics."""

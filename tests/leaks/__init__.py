"""Is anything left of many requests? `python -m tests.leaks` sends 200,000 over HTTP and gRPC while models are loaded and
unloaded, and compares what the server holds at the end with what it held after the first tenth."""

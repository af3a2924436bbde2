"""tpy beside other servers that run a function in Python: `python -m benchmarks.python_servers` (`make bench-python-servers`)."""

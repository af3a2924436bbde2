"""Instances: in their own process (`process_instance.py`) or in the server's (`thread_instance.py`)."""

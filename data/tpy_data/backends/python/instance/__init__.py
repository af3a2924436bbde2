"""Instances: in a process of their own (`process_instance.py`) or in the server's (`thread_instance.py`)."""

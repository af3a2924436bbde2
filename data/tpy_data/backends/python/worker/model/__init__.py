"""A model.py at work: imported (`loader.py`), initialised and called (`runner.py`), its requests made of messages and its answers
made messages (`messages.py`), what it leaves to an event loop (`coroutines.py`), and its failures (`failure_log.py`).
"""

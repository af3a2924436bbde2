"""The process of a repository agent: `python -m tpy_data.agents NAME DIRECTORY`.

One for each agent, with all models that use it, so that an agent that crashes or hangs takes no server with it. It takes requests
as lines of JSON on its standard input, one at a time, and answers each with a line. `native` is an agent in C; one in Python is
found by its entry point. The control plane starts it and decides what it is asked.
"""

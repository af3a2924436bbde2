"""The environment of a worker: the interpreter, the process, what it prints, and the tokens that it takes."""

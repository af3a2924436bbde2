"""What a worker runs in: the interpreter, the process, what it prints, and the tokens that it takes."""

"""The C boundary: a hostile library that calls the host's functions in random order, with random handles."""

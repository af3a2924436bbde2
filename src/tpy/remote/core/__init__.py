"""The protocol between the engine and a frontend process, sans-IO: bytes to messages and back, and what each side keeps of it.

framing.py      frames in a stream of bytes
messages.py     the messages in the frames
tensors.py      tensors in messages, and in memory that both processes share
arena.py        which parts of that memory are taken
replica.py      a frontend process's copy of the serving table
caller.py       the frontend's side: requests and calls that are not answered
answerer.py     the engine's side: requests under way, and how much may be sent for each of them
"""

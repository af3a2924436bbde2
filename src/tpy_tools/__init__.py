"""Tools around the server: the commands of `tpy` that a server does not need, and what they are made of.

`commands` has the commands, which the command line finds by their entry points; `load` is the load generator, `analyze` searches
for the best configuration with it, `replay` sends recordings. Nothing of the server imports this package.
"""

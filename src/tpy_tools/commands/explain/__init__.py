"""`tpy explain`: what a running server does with the requests of a model, or did with one request.

`core` makes texts of what the server, or a trace file, says.
"""

"""The platforms' entries in the table of frontends (`tpy.frontends.table`).

An entry is read whenever a command of tpy begins. It has the flags, and imports the frontend itself where that is needed.
"""

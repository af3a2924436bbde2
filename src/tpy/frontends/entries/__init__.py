"""The frontends of this distribution: an entry for each in the table (`tpy.frontends.table`).

An entry is read whenever a command of tpy begins. It has the flags, and imports the frontend itself where that is needed.
"""

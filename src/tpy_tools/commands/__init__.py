"""The commands of `tpy` but `serve` and `dev`, each found by its entry point in the group `tpy.commands`.

Decides what a terminal user sees of them. A module or a package for each, with the options in `NAME` or `NAME.command`, which
import what they do when they are run: `tpy --help` imports the options of all.
"""

"""The command line. Decides what a terminal user sees: flags, exit codes, one clear line for each mistake.

`flags.py` is the table; everything else here is made from it.
"""

from tpy.cli.main import main, tritonserver

__all__ = ["main", "tritonserver"]

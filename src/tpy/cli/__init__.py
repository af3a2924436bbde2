"""The command line. Decides what a terminal user sees: flags, exit codes, one clear line for each mistake.

`flags.py` is the table; everything else here is made from it.
"""

import sys

from tpy.errors import TpyError

try:
    from tpy.cli.main import main, tritonserver
except TpyError as error:  # the flags of an installed frontend cannot be read
    sys.exit(f"tpy: error: {error}")
except KeyboardInterrupt:  # Ctrl-C before there is a command that could say something
    sys.exit(130)

__all__ = ["main", "tritonserver"]

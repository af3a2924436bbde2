"""python -m tpy_native include: prints the folder of the headers."""

from __future__ import annotations

import sys

from tpy_native import building

if __name__ == "__main__":
    if sys.argv[1:] != ["include"]:
        sys.exit("usage: python -m tpy_native include")
    print(building.INCLUDE)

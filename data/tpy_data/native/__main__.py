"""python -m tpy_data.native include|build: the folder of the headers; or the host library, built where a wheel takes it from."""

from __future__ import annotations

import sys

from tpy.errors import TpyError
from tpy_data.native import building

if __name__ == "__main__":
    if sys.argv[1:] == ["include"]:
        print(building.INCLUDE)
    elif sys.argv[1:] == ["build"]:
        try:
            print(building.build_for_wheel())
        except TpyError as error:
            sys.exit(f"error: {error}")
    else:
        sys.exit("usage: python -m tpy_data.native include|build")

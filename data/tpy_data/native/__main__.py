"""See `tpy_native.__main__`."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("tpy_native", run_name="__main__", alter_sys=True)

"""Commands that are interrupted while they import."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == "tpy.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
import tpy.cli
"""


def test_an_interrupt_during_the_imports_is_no_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "")

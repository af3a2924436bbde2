"""Record the ensemble transcripts: `python -m tests.conformance.ensemble_record HOST:PORT > transcripts/ensembles.json`.

The server serves, in mode explicit, the repository that `python -m tests.conformance.ensemble_record --build DIRECTORY` writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from .ensemble_cases import CASES
from .ensemble_repository import build
from .generate_record import Exchange, exchange


def record(address: str) -> dict[str, Exchange]:
    """The answer to every case, by name."""
    return {case.name: exchange(address, case) for case in CASES}


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--build":
        build(Path(sys.argv[2]))
    elif len(sys.argv) == 2:
        print(msgspec.json.format(msgspec.json.encode(record(sys.argv[1])), indent=1).decode())
    else:
        raise SystemExit(__doc__)

"""`python -m tpy.ray repository=FOLDER ... > serve.yaml`: writes the configuration for `serve run` and `serve deploy`, with
`address=HOST:PORT` only if that cluster can serve it."""

from __future__ import annotations

import sys

import yaml  # type: ignore[import-untyped]  # it has no types

from tpy.errors import TpyError
from tpy.ray.application import untried
from tpy.ray.cluster import problems
from tpy.ray.config import serve_config


def main(words: list[str]) -> int:
    """Returns the exit code."""
    wrong = [word for word in words if "=" not in word]
    if wrong or not words:
        print(
            f"usage: python -m tpy.ray repository=FOLDER [per_model=true] [address=HOST:PORT] [NAME=VALUE ...]{_but(wrong)}",
            file=sys.stderr,
        )
        return 2
    arguments = dict(word.split("=", 1) for word in words)
    address = arguments.pop("address", "")
    try:
        config = serve_config(arguments)
    except TpyError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    if sentence := untried():
        print(f"warning: {sentence}", file=sys.stderr)
    found = problems(config, address) if address else []
    for sentence in found:
        print(f"error: {sentence}", file=sys.stderr)
    if found:
        return 1
    print(yaml.safe_dump(config, sort_keys=False), end="")
    return 0


def _but(wrong: list[str]) -> str:
    return f"; got '{wrong[0]}'" if wrong else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

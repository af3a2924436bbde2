"""The repository agent `checksum`: checks files before their model may be served.

With Triton's parameters: `MD5:<file>` is the MD5 that the file must have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tpy.config.model_config import RepositoryAgent
from tpy.errors import InvalidArgument

CHECKSUM_AGENT: Final = "checksum"
_MD5_PREFIX: Final = "MD5:"


def required_md5s(agent: RepositoryAgent) -> Mapping[str, str]:
    """The files that it checks, with the MD5 that each must have, in lower case.

    Raises InvalidArgument for an unknown parameter.
    """
    required: dict[str, str] = {}
    for key, value in agent.parameters.items():
        if not key.startswith(_MD5_PREFIX) or key == _MD5_PREFIX:
            raise InvalidArgument(f"agent '{CHECKSUM_AGENT}' has no parameter '{key}'; expected '{_MD5_PREFIX}<file>'")
        required[key.removeprefix(_MD5_PREFIX)] = value.strip().lower()
    return required


def mismatches(required: Mapping[str, str], found: Mapping[str, str | None]) -> list[str]:
    """One sentence per file whose MD5 is not the required one."""
    texts: list[str] = []
    for path, expected in required.items():
        actual = found.get(path)
        if actual is None:
            texts.append(f"checksum agent: there is no file '{path}' in the model's directory; expected MD5 {expected}")
        elif actual != expected:
            texts.append(f"checksum agent: MD5 of '{path}' is {actual}; expected {expected}")
    return texts

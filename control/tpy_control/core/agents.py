"""Repository agents: checks that a configuration asks for before its model may be served.

One agent is built in, `checksum`, with Triton's parameters: `MD5:<file>` is the MD5 that the file must have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tpy.config import ModelConfig
from tpy.errors import InvalidArgument

CHECKSUM_AGENT: Final = "checksum"
_MD5_PREFIX: Final = "MD5:"


def required_md5s(config: ModelConfig) -> Mapping[str, str]:
    """The files that the agents of a configuration check, with the MD5 that each must have, in lower case.

    Raises InvalidArgument for an agent or a parameter that this server does not have.
    """
    required: dict[str, str] = {}
    for agent in () if config.model_repository_agents is None else config.model_repository_agents.agents:
        if agent.name != CHECKSUM_AGENT:
            raise InvalidArgument(f"unable to find repository agent '{agent.name}'; expected '{CHECKSUM_AGENT}'")
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

"""The output plan of one request: decided while the request is parsed, used when its response is encoded."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy.frontends.shared_memory import RegionRange


class OutputChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The form that the caller asked of one output: as a blob or as JSON, as a tensor or (`classification` > 0) as its best
    classes. With `region` it is written there, and the answer has only its name, datatype and shape."""

    binary: bool = False
    classification: int = 0
    region: RegionRange | None = None


class OutputPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Per output name what was asked of it; outputs that are not named follow `default` (all of them, when none was named)."""

    choices: Mapping[str, OutputChoice] = msgspec.field(default_factory=dict)
    default: OutputChoice = OutputChoice()

    @property
    def is_plain(self) -> bool:
        """True if all outputs are wanted as tensors in JSON."""
        return self.default == JSON and all(choice == JSON for choice in self.choices.values())

    def choice(self, name: str) -> OutputChoice:
        """The choice for the output `name`."""
        return self.choices.get(name, self.default)


JSON = OutputChoice()
BINARY = OutputChoice(binary=True)
JSON_PLAN = OutputPlan(default=JSON)
BINARY_PLAN = OutputPlan(default=BINARY)

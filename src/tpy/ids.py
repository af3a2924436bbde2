"""Names of things: values that are compared and printed, never interpreted."""

from __future__ import annotations

from pathlib import Path
from typing import NewType, TypeAlias

import msgspec

Version = NewType("Version", int)
"""A model version, >= 0: the number that names its version folder."""

Generation = NewType("Generation", int)
"""Counts the reloads of a model: two loads of one version differ in it. Grows, never reused within a server's life."""

ModelDirectory: TypeAlias = Path
"""The directory of a model's files. Cores pass it on and join names to it; only sources and backends open what it names."""


class ModelId(msgspec.Struct, frozen=True, order=True):
    """A model. `namespace` is "" unless --model-namespacing=true, then the path of the repository it came from."""

    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}::{self.name}" if self.namespace else self.name

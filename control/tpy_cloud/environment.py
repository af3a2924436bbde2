"""CloudEnvironment: the environment variables that say how to reach the cloud."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

CREDENTIAL_FILE: Final = "TRITON_CLOUD_CREDENTIAL_PATH"
_PREFIXES: Final = ("AWS_", "GOOGLE_", "AZURE_", "OSS_", "ALIBABA_CLOUD_", "STORAGE_EMULATOR_HOST", "HOME", CREDENTIAL_FILE)


class CloudEnvironment(Mapping[str, str]):
    """The environment variables that say how to reach the cloud. Shows nothing of them where it is printed."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._values = {name: value for name, value in environment.items() if name.startswith(_PREFIXES) and value}

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"CloudEnvironment({len(self._values)} variables)"

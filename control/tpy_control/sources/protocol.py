"""The seam between the control plane and where models are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tpy_control.core.picture import Glance, ModelLocation, ModelPicture


class RepositorySource(Protocol):
    """Shows the model repositories. Nothing here blocks the loop, and nothing here decides anything.

    Errors: `list_models` raises Unavailable where a repository cannot be read; troubles of one model are part of its picture.
    """

    async def list_models(self) -> Sequence[ModelLocation]:
        """All model directories of all repositories, sorted. Raises Unavailable when one repository cannot be read: then
        nothing is known, and in particular not that its models are gone."""
        ...

    async def glances(self, locations: Sequence[ModelLocation]) -> Sequence[Glance | None]:
        """A cheap look at each; None where there is no such directory. Equals the `glance` of a picture taken at the same
        moment."""
        ...

    async def picture(self, location: ModelLocation, *, config_name: str) -> ModelPicture | None:
        """The whole picture; None where there is no such directory. `config_name` not "" prefers `configs/<name>.pbtxt`."""
        ...

    async def md5(self, location: ModelLocation, path: str) -> str | None:
        """The MD5 of a file of the model in lower-case hex; None where there is no such file inside the model's directory."""
        ...

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` soon after something changed; runs until cancelled, or returns where changes cannot be seen (the
        periodic look then finds them)."""
        ...

"""The options of the control plane."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from tpy.limits import AGENT_ACTION_S_MAX_DEFAULT
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_control.address import RepositoryAddress
from tpy_control.sources.remote_options import RemoteOptions


class ControlMode(enum.Enum):
    """--model-control-mode."""

    NONE = "none"
    """All models are loaded at the start; later changes on disk and load calls are not followed."""
    POLL = "poll"
    """All models are loaded at the start, and what changes on disk is followed."""
    EXPLICIT = "explicit"
    """Models are loaded and unloaded by calls; at the start, those named by --load-model."""


class Readiness(enum.Enum):
    """--readiness: which models a strict server waits for."""

    SERVING = "serving"
    """Models that load at the start, and models that have served. A later model that cannot be loaded does not take a serving
    host out of its load balancer."""
    ALL_MODELS = "all-models"
    """All known models, even if their files cannot be used."""


class ControlOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The control plane's settings, checked by `tpy_control.run.require_sound`.

    `load_models` are the --load-model names; ("*",) is all. `model_config_name` "" is config.pbtxt. `auto_complete` is false
    under --disable-auto-complete-config. `settle_ns`: in poll mode a directory is used only after it has not changed for so
    long, so that a half-copied model is not loaded. `hold_losses`: in poll mode, models of a repository that loses most of
    them at once are served on until the second poll afterwards.
    `scratch_directory`: where the directories of `file:` overrides are made;
    None: the system's directory for temporary files. `require_repositories` false: when a repository cannot be read at the start,
    the control plane runs all the same, and the server is neither live nor ready. `cloud` is for repositories
    elsewhere. `agent_command` runs repository agents: the command of their process, and last their folder;
    () runs none but `checksum`. `agent_timeout_s` is the time that each has for an action.
    """

    repositories: tuple[RepositoryAddress, ...]
    mode: ControlMode = ControlMode.NONE
    poll_interval_ns: int = 15 * NS_PER_S
    load_models: tuple[str, ...] = ()
    strict_readiness: bool = True
    readiness: Readiness = Readiness.SERVING
    require_repositories: bool = True
    model_config_name: str = ""
    auto_complete: bool = True
    namespacing: bool = False
    settle_ns: int = 1000 * NS_PER_MS
    hold_losses: bool = True
    scratch_directory: Path | None = None
    cloud: RemoteOptions | None = None
    agent_command: tuple[str, ...] = ()
    agent_timeout_s: float = AGENT_ACTION_S_MAX_DEFAULT

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of this machine that stand for the repositories."""
        return tuple(_folder(one, self.cloud) for one in self.repositories)


def _folder(repository: RepositoryAddress, cloud: RemoteOptions | None) -> Path:
    if isinstance(repository, Path) or cloud is None:
        return Path(str(repository))
    return cloud.folder_of(repository)

"""The states and the description of a model, as values for both ports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tpy.echo import echo
from tpy.errors import NotFound
from tpy.messages import ModelState
from tpy.services import Services
from tpy_platforms.tensorflow_serving.models import Argument, ModelSpec, ServingSignature, version_of
from tpy_platforms.tensorflow_serving.tensors import DTYPES

_STATES: Final = {
    ModelState.LOADING: "LOADING",
    ModelState.READY: "AVAILABLE",
    ModelState.UNLOADING: "UNLOADING",
    ModelState.UNAVAILABLE: "END",
}
_OK, _UNKNOWN = (0, "OK"), (2, "UNKNOWN")
_UNLOADED: Final = "unloaded"
"""The reason of the index for a version that was unloaded on purpose."""


class ServingVersionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A version with its state, and the code and word of its error."""

    version: int
    state: str
    code: int
    word: str
    message: str

    @property
    def document(self) -> dict[str, object]:
        """As JSON."""
        return {
            "version": str(self.version),
            "state": self.state,
            "status": {"error_code": self.word, "error_message": self.message},
        }


async def statuses(services: Services, spec: ModelSpec) -> list[ServingVersionStatus]:
    """The versions of a model, the newest first, or the one that is asked for. Raises NotFound, and as `version_of`."""
    wanted = version_of(services.inference, spec)
    found: list[ServingVersionStatus] = []
    for entry in await services.repository.index():
        if entry.name == spec.name and entry.version is not None and wanted in (None, entry.version):
            failed = entry.state is ModelState.UNAVAILABLE and entry.reason not in ("", _UNLOADED)
            code, word = _UNKNOWN if failed else _OK
            state = "UNKNOWN" if entry.state is None else _STATES.get(entry.state, "UNKNOWN")
            message = entry.reason if failed else ""
            found.append(ServingVersionStatus(version=entry.version, state=state, code=code, word=word, message=message))
    if not found:
        what = "any versions" if wanted is None else f"version {wanted}"
        raise NotFound(f"Could not find {what} of model {echo(spec.name)}")
    return sorted(found, key=lambda each: -each.version)


def signature_document(signature: ServingSignature) -> dict[str, object]:
    """A map of signatures as JSON."""
    return {
        "signature_def": {
            signature.name: {
                "inputs": _infos(signature.inputs),
                "outputs": _infos(signature.outputs),
                "method_name": signature.method,
            }
        }
    }


def _infos(arguments: Mapping[str, Argument]) -> dict[str, object]:
    return {
        name: {
            "dtype": DTYPES[each.datatype],
            "tensor_shape": {"dim": [{"size": str(size), "name": ""} for size in each.shape], "unknown_rank": False},
            "name": name,
        }
        for name, each in arguments.items()
    }

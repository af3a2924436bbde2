"""A served model version as frontends see it, the graph in its file, and the model repository (model_repository extension)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from tpy.messages.datatypes import DataType


class TensorDescription(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output as requests must give it: `shape` has the configuration's dims, with a leading -1 when the model
    batches; -1 is any size. Never the reshaped form."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    optional: bool = False
    ragged: bool = False
    labels: tuple[str, ...] = ()


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata by which frontends parse and check requests. `platform` is the platform, else the backend.

    `batches` says whether shapes carry a batch dimension (max_batch_size > 0). `inputs` and `outputs` are in the order of
    the configuration. The full configuration is served by `InferenceService.config`. With `requires_outputs` a response$
    that lacks an output which was asked for is an error. With `copies_inputs` its instances copy every input to where their model
    sees it, so that a large one may be given as a `tpy.regions.RegionArray`. `gpus` are those of its instances: what a client has
    in their memory may be given as a `RegionArray`, too, and is copied to where an instance takes it (`Residency.inputs`).
    """

    name: str
    version: int
    platform: str
    max_batch_size: int
    decoupled: bool
    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]
    input_by_name: Mapping[str, TensorDescription]
    output_by_name: Mapping[str, TensorDescription]
    namespace: str = ""
    requires_outputs: bool = False
    copies_inputs: bool = False
    gpus: tuple[int, ...] = ()

    @property
    def batches(self) -> bool:
        """True if the first dimension of every tensor is the batch."""
        return self.max_batch_size > 0


class ModelState(enum.Enum):
    """State of one model version; values are the words of the repository index."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the index. `version` and `state` are None for a model that was never loaded."""

    name: str
    version: int | None = None
    state: ModelState | None = None
    reason: str = ""
    namespace: str = ""


class ConfigProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a configuration, `severity` "error" or "warning". `field` is a path as `input[0].dims`, "" the
    whole; `line` and `column` count from 1, 0: not known. `expected` says what would be right, where that adds to it."""

    severity: str
    message: str
    field: str = ""
    line: int = 0
    column: int = 0
    expected: str = ""


class ConfigCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a model as it was checked, without loading anything. `text` is what was checked, of `file` in the
    model's folder, "" if it was given or is missing. `config_json` is the same, normalised and in JSON, "" where it
    cannot be read. Of the version folders (`versions`) its policy selects `selected`."""

    problems: tuple[ConfigProblem, ...]
    text: str = ""
    file: str = ""
    config_json: str = ""
    versions: tuple[int, ...] = ()
    selected: tuple[int, ...] = ()


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A load call. `config_json` replaces config.pbtxt for this load; `files` maps `<version>/<path>` to content and makes a
    separate model directory (needs `config_json`). Sizes are bounded by `limits.LOAD_OVERRIDE_BYTES_MAX`."""

    model_name: str
    config_json: str | None = None
    files: Mapping[str, bytes] = msgspec.field(default_factory=dict)


class GraphTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor. `datatype` "" and `shape` None: the file does not tell; a size is a number, a name, or -1 for one that is not
    known."""

    name: str
    datatype: str = ""
    shape: tuple[int | str, ...] | None = None


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node. `domain` "": the operator is one of the standard. `inputs` are names of tensors, weights among them; `subgraphs`
    names of attributes that are graphs, as the branches of an If."""

    operator: str
    name: str = ""
    domain: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[GraphTensor, ...] = ()
    subgraphs: tuple[str, ...] = ()


class ModelGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A graph: the first of its nodes, in the order of the file. `node_count` counts all."""

    file: str
    inputs: tuple[GraphTensor, ...] = ()
    outputs: tuple[GraphTensor, ...] = ()
    nodes: tuple[GraphNode, ...] = ()
    node_count: int = 0


class RolloutArm(msgspec.Struct, frozen=True, kw_only=True):
    """A version in a rollout, with its requests that ended in the present step. `p99_ns` is the 99th percentile of their time."""

    version: int
    ended: int
    failed: int
    p99_ns: int


class RolloutStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout: `state` is "running", "promoted" or "rolled back", with the `reason`; the new version gets `percent` of the
    requests without a version, in step `step` of `steps`. `compared` requests of the present step were answered by both versions
    for comparison, and the answers to `differed` of them were not the same. `plan` is the one that it goes by, with all its
    fields, from the model's "parameter" or a "call"."""

    model: str
    state: str
    percent: float
    step: int
    steps: int
    reason: str
    old: RolloutArm
    new: RolloutArm
    compared: int = 0
    differed: int = 0
    plan: Mapping[str, Any] = {}
    plan_from: str = "parameter"

"""A served model version as frontends see it."""

from __future__ import annotations

from collections.abc import Mapping

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

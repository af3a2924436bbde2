"""The description of a pipeline: what it says of its inputs and outputs."""

from __future__ import annotations

import msgspec

from tpy.messages import DataType


class PipelineTensor(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output of a pipeline: of a sample, so without the batch. What is None the pipeline does not say."""

    name: str
    datatype: DataType | None = None
    dimensions: int | None = None

    def without_outer_axis(self) -> PipelineTensor:
        """That of an output whose samples are split."""
        if not self.dimensions:
            return self
        return msgspec.structs.replace(self, dimensions=self.dimensions - 1)


class PipelineDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs by name as DALI sorts them; outputs in the pipeline's order."""

    inputs: tuple[PipelineTensor, ...]
    outputs: tuple[PipelineTensor, ...]
    max_batch_size: int

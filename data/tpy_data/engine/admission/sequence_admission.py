"""SequenceAdmission: is this a request that a sequence model can run, and with which control tensors? Pure.

What any model checks comes first; then what Triton's sequence batcher checks, in its order, with its texts. Whether the
sequence is known is the scheduler's to say.
"""

from __future__ import annotations

from tpy.config import ModelConfig
from tpy.errors import InvalidArgument
from tpy.messages import InferenceRequest
from tpy_data.engine.admission.admission import Admission, Admitted
from tpy_data.engine.admission.sequence_controls import SequenceControls


class SequenceAdmission:
    """The checks of one model version. With `iterative`, a request without an id is a sequence of its own, and which controls it
    gets is seen each time it is executed."""

    __slots__ = ("_admission", "_controls", "_iterative", "_model_name")

    def __init__(self, config: ModelConfig, controls: SequenceControls, *, iterative: bool) -> None:
        self._admission = Admission(config)
        self._controls = controls
        self._iterative = iterative
        self._model_name = config.name

    def admit(self, request: InferenceRequest) -> Admitted:
        """The request with its controls among the inputs. Raises InvalidArgument."""
        admitted = self._admission.admit(request)
        if admitted.batch_size != 1:
            raise InvalidArgument(
                f"inference request to model '{self._model_name}' must specify batch-size 1 due to requirements of sequence "
                "batcher"
            )
        if request.sequence is None:
            if self._iterative:
                return admitted
            raise InvalidArgument(
                f"inference request to model '{self._model_name}' must specify a non-zero or non-empty correlation ID"
            )
        if not request.sequence.start and not self._controls.fit(request.sequence):
            return admitted  # no such sequence can have begun: the scheduler says so
        controls = self._controls.of(request.sequence)
        return Admitted({**admitted.inputs, **controls}, 1, admitted.signature)

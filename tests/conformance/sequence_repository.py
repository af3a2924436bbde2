"""The model repository of the sequence transcripts: models that tell what they see of each batch. Built, never committed."""

from __future__ import annotations

from pathlib import Path

SEEN = """
import json
import time
import numpy as np
import triton_python_backend_utils as pb_utils

def value(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    array = tensor.as_numpy()
    return [str(array.dtype), list(array.shape), array.reshape(-1).tolist()]

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
        self.given = {}

    def execute(self, requests):
        places = [[request.correlation_id(), request.flags(), request.request_id(),
                   {name: value(request, name) for name in ("START", "END", "READY", "CORRID")}] for request in requests]
        return [self.answer(request, places, at) for at, request in enumerate(requests)]

    def answer(self, request, places, at):
        id, flags = request.correlation_id(), request.flags()
        x = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().reshape(-1)[0])
        if not id:
            return pb_utils.InferenceResponse([])
        if x == 13:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("unlucky"))
        if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.sums[id] = 0
        self.sums[id] += x
        said = {"at": at, "batch": places, "sum": self.sums[id]} if WHOLE else {"sum": self.sums[id], "place": places[at]}
        text = np.array([json.dumps(said).encode()], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SAID", text.reshape(SHAPE))])
"""

ITERATING = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.looks = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().reshape(-1)[0])
        if not request.correlation_id():
            return pb_utils.InferenceResponse([])
        looks = self.looks.setdefault(request.request_id(), [])
        looks.append([request.flags()] + [int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0])
                                          for name in ("START", "END", "READY")])
        if len(looks) < x:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        text = np.array([json.dumps(self.looks.pop(request.request_id())).encode()], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SAID", text.reshape(SHAPE))])
"""

SLEEPING = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            time.sleep(int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().reshape(-1)[0]) / 1000)
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""

IDLE_MS = 1500


def _control(kind: str, form: str) -> str:
    return f'{{ name: "{kind}" control [ {{ kind: CONTROL_SEQUENCE_{kind} {form} }} ] }}'


_INT = [_control(kind, "int32_false_true: [ 0, 1 ]") for kind in ("START", "END", "READY")]
_OTHER = [
    _control("START", "fp32_false_true: [ -1.5, 2.5 ]"),
    _control("END", "bool_false_true: [ false, true ]"),
    _control("READY", "bool_false_true: [ true, false ]"),
]


def _id(datatype: str) -> str:
    return _control("CORRID", f"data_type: TYPE_{datatype}")


def _model(
    source: str, *, batch: int, sequences: str = "", controls: list[str] | None = None, whole: bool = True
) -> tuple[str, str]:
    shape = "(1, 1)" if batch else "(1,)"
    block = ""
    if sequences:
        listed = ", ".join(controls if controls is not None else [*_INT, _id("UINT64")])
        idle = f"max_sequence_idle_microseconds: {IDLE_MS * 1000}"
        block = f"sequence_batching {{ {sequences} {idle} control_input [ {listed} ] }}" if listed else ""
        block = block or f"sequence_batching {{ {sequences} {idle} }}"
    config = (
        f'backend: "python"\nmax_batch_size: {batch}\ninstance_group [ {{ kind: KIND_CPU }} ]\n'
        'input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
        f'output [ {{ name: "SAID" data_type: TYPE_STRING dims: [ 1 ] }} ]\n{block}\n'
    )
    return config, source.replace("SHAPE", shape).replace("WHOLE", str(whole))


MODELS: dict[str, tuple[str, str]] = {
    "direct": _model(SEEN, batch=4, sequences="direct { }"),
    "unbatched": _model(SEEN, batch=0, sequences="direct { }"),
    "oldest": _model(SEEN, batch=4, sequences="oldest { max_candidate_sequences: 2 }", whole=False),
    "single": _model(SEEN, batch=1, sequences="direct { }", whole=False),
    "other": _model(SEEN, batch=2, sequences="direct { }", controls=[*_OTHER, _id("INT32")]),
    "int64": _model(SEEN, batch=2, sequences="oldest { }", controls=[_id("INT64")]),
    "uint32": _model(SEEN, batch=2, sequences="oldest { }", controls=[_id("UINT32")]),
    "bare": _model(SEEN, batch=2, sequences="direct { }", controls=[]),
    "iterating": _model(ITERATING, batch=2, sequences="oldest { } iterative_sequence: true"),
    "iterating_direct": _model(ITERATING, batch=2, sequences="direct { } iterative_sequence: true"),
    "sleep": _model(SLEEPING, batch=0),
}
"""Name -> (config.pbtxt, model.py)."""


def build(repository: Path) -> None:
    """Write everything under `repository`, which must be empty or missing."""
    for name, (config, source) in MODELS.items():
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config, encoding="utf-8")
        (folder / "model.py").write_text(source, encoding="utf-8")

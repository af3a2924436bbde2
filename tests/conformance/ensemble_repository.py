"""The model repository of the ensemble transcripts: small python models, ensembles of them, ensembles that contradict them.
Built, never committed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .repository import FAILING

IDENTITY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            outputs = [pb_utils.Tensor(t.name().replace("INPUT", "OUTPUT"), t.as_numpy()) for t in request.inputs()]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""

NOTHING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""

COUNT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            upto = int(request.inputs()[0].as_numpy().reshape(-1)[0])
            for value in range(upto):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([[value] * 4], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

SEEN = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seen = json.dumps({
                "parameters": json.loads(request.parameters()),
                "id": request.request_id(),
                "correlation": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "outputs": sorted(request.requested_output_names()),
                "inputs": sorted(t.name() for t in request.inputs()),
                "shapes": [list(t.as_numpy().shape) for t in request.inputs()],
            }, sort_keys=True)
            output = pb_utils.Tensor("SEEN", np.array([[seen.encode()]], np.object_))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""

BROKEN = "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('no weights')\n"


def _tensor(name: str, datatype: str = "INT32", dims: str = "[ 4 ]", more: str = "") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{datatype} dims: {dims} {more} }}'


def _model(inputs: list[str], outputs: list[str], *, batch: int = 4, more: str = "") -> str:
    return (
        f'backend: "python"\nmax_batch_size: {batch}\ninput [ {", ".join(inputs)} ]\noutput [ {", ".join(outputs)} ]\n'
        f"instance_group [ {{ kind: KIND_CPU }} ]\n{more}\n"
    )


Step = tuple[str, Mapping[str, str], Mapping[str, str], int | None]


def step(model: str, reads: str | Mapping[str, str], writes: str | Mapping[str, str], version: int | None = -1) -> Step:
    """Names alone are those of INPUT0 and OUTPUT0."""
    return (
        model,
        {"INPUT0": reads} if isinstance(reads, str) else reads,
        {"OUTPUT0": writes} if isinstance(writes, str) else writes,
        version,
    )


def _map(field: str, pairs: Mapping[str, str]) -> str:
    return " ".join(f'{field} {{ key: "{key}" value: "{value}" }}' for key, value in pairs.items())


def _ensemble(*steps: Step, inputs: list[str] | None = None, outputs: list[str] | None = None, batch: int = 4) -> str:
    texts = [
        f'{{ model_name: "{model}" {"" if version is None else f"model_version: {version}"} {_map("input_map", reads)} '
        f"{_map('output_map', writes)} }}"
        for model, reads, writes, version in steps
    ]
    return (
        f'platform: "ensemble"\nmax_batch_size: {batch}\ninput [ {", ".join(inputs or [_tensor("INPUT0")])} ]\n'
        f"output [ {', '.join(outputs or [_tensor('OUTPUT0')])} ]\nensemble_scheduling {{ step [ {', '.join(texts)} ] }}\n"
    )


_IN, _OUT = [_tensor("INPUT0")], [_tensor("OUTPUT0")]
_TWO = ([_tensor("INPUT0"), _tensor("INPUT1")], [_tensor("OUTPUT0"), _tensor("OUTPUT1")])
_DECOUPLED = "model_transaction_policy { decoupled: true }"

MEMBERS: dict[str, tuple[str, str]] = {
    "ident": (_model(_IN, _OUT), IDENTITY),
    "again": (_model(_IN, _OUT), IDENTITY),
    "narrow": (_model(_IN, _OUT, batch=2), IDENTITY),
    "plain": (_model(_IN, _OUT, batch=0), IDENTITY),
    "rows": (_model([_tensor("INPUT0", dims="[ -1, 4 ]")], [_tensor("OUTPUT0", dims="[ -1, 4 ]")], batch=0), IDENTITY),
    "failing": (_model(_IN, _OUT), FAILING),
    "nothing": (_model(_IN, _OUT), NOTHING),
    "two": (_model(*_TWO), IDENTITY),
    "lenient": (_model([_tensor("INPUT0"), _tensor("INPUT1", more="optional: true")], _TWO[1]), IDENTITY),
    "floats": (_model([_tensor("INPUT0", "FP32")], [_tensor("OUTPUT0", "FP32")]), IDENTITY),
    "short": (_model([_tensor("INPUT0", dims="[ 3 ]")], [_tensor("OUTPUT0", dims="[ 3 ]")]), IDENTITY),
    "text": (_model([_tensor("INPUT0", "STRING", "[ -1 ]")], [_tensor("OUTPUT0", "STRING", "[ -1 ]")]), IDENTITY),
    "square": (
        _model([_tensor("INPUT0", more="reshape { shape: [ 2, 2 ] }")], [_tensor("OUTPUT0", more="reshape { shape: [ 2, 2 ] }")]),
        IDENTITY,
    ),
    "seen": (_model([_tensor("INPUT0")], [_tensor("SEEN", "STRING", "[ 1 ]")]), SEEN),
    "count": (_model(_IN, _OUT, more=_DECOUPLED), COUNT),
    "count2": (_model(_IN, _OUT, more=_DECOUPLED), COUNT),
    "raising": (_model(_IN, _OUT), BROKEN),
    "versions": (_model(_IN, _OUT, more="version_policy { specific { versions: [ 1, 2 ] } }"), IDENTITY),
}
"""Name -> (config.pbtxt, model.py)."""

VERSIONS = {"versions": (1, 2, 3)}

ENSEMBLES: dict[str, str] = {
    "chain": _ensemble(step("ident", "INPUT0", "A"), step("again", "A", "OUTPUT0")),
    "join": _ensemble(
        step("ident", "INPUT0", "A"),
        step("again", "INPUT0", "B"),
        step("two", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"}),
        outputs=_TWO[1],
    ),
    "fails": _ensemble(step("failing", "INPUT0", "A"), step("ident", "A", "OUTPUT0")),
    "nested": _ensemble(step("fails", "INPUT0", "A"), step("again", "A", "OUTPUT0")),
    "lacks": _ensemble(step("nothing", "INPUT0", "A"), step("ident", "A", "OUTPUT0")),
    "lacks_lenient": _ensemble(
        step("nothing", "INPUT0", "A"), step("lenient", {"INPUT0": "INPUT0", "INPUT1": "A"}, {"OUTPUT0": "OUTPUT0"})
    ),
    "lacks_all": _ensemble(step("nothing", "INPUT0", "OUTPUT0")),
    "maybe": _ensemble(
        step("lenient", {"INPUT0": "INPUT0", "INPUT1": "INPUT1"}, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"}),
        inputs=[_tensor("INPUT0"), _tensor("INPUT1", more="optional: true")],
        outputs=_TWO[1],
    ),
    "unmapped_optional": _ensemble(step("lenient", "INPUT0", {"OUTPUT0": "OUTPUT0"})),
    "mixed": _ensemble(step("plain", "INPUT0", "A"), step("ident", "A", "OUTPUT0")),
    "mixed_rows": _ensemble(step("rows", "INPUT0", "A"), step("ident", "A", "OUTPUT0")),
    "flat": _ensemble(step("ident", "INPUT0", "OUTPUT0"), batch=0),
    "squares": _ensemble(step("square", "INPUT0", "OUTPUT0")),
    "texts": _ensemble(
        step("text", "INPUT0", "OUTPUT0"),
        inputs=[_tensor("INPUT0", "STRING", "[ -1 ]")],
        outputs=[_tensor("OUTPUT0", "STRING", "[ -1 ]")],
    ),
    "tells": _ensemble(
        step("ident", "INPUT0", "A"), step("seen", "A", {"SEEN": "SEEN"}), outputs=[_tensor("SEEN", "STRING", "[ 1 ]")]
    ),
    "counts": _ensemble(step("count", "INPUT0", "A"), step("ident", "A", "OUTPUT0")),
    "counts_last": _ensemble(step("ident", "INPUT0", "A"), step("count", "A", "OUTPUT0")),
    "version_2": _ensemble(step("versions", "INPUT0", "OUTPUT0", 2)),
    # Those that cannot be loaded.
    "version_0": _ensemble(step("ident", "INPUT0", "OUTPUT0", None)),
    "version_3": _ensemble(step("versions", "INPUT0", "OUTPUT0", 3)),
    "unknown": _ensemble(step("nobody", "INPUT0", "A"), step("noone", "A", "OUTPUT0")),
    "too_wide": _ensemble(step("narrow", "INPUT0", "OUTPUT0")),
    "other_type": _ensemble(step("floats", "INPUT0", "OUTPUT0")),
    "other_type_inside": _ensemble(step("ident", "INPUT0", "A"), step("floats", "A", "B"), step("again", "B", "OUTPUT0")),
    "other_shape": _ensemble(step("short", "INPUT0", "OUTPUT0")),
    "not_fed": _ensemble(step("two", "INPUT0", {"OUTPUT0": "OUTPUT0"})),
    "no_such_input": _ensemble(step("ident", {"INPUT0": "INPUT0", "X": "INPUT0"}, "OUTPUT0")),
    "no_such_output": _ensemble(step("ident", "INPUT0", {"X": "OUTPUT0"})),
    "two_flows": _ensemble(
        step("count", "INPUT0", "A"),
        step("count2", "INPUT0", "B"),
        step("two", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "OUTPUT0"}),
    ),
    "circle": _ensemble(step("circle2", "INPUT0", "OUTPUT0")),
    "circle2": _ensemble(step("circle", "INPUT0", "OUTPUT0")),
    "itself": _ensemble(step("itself", "INPUT0", "OUTPUT0")),
    "on_invalid": _ensemble(step("other_type", "INPUT0", "OUTPUT0")),
    "on_raising": _ensemble(step("raising", "INPUT0", "OUTPUT0")),
    "no_step": 'platform: "ensemble"\nmax_batch_size: 4\ninput [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]\n'
    'output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]\nensemble_scheduling { }\n',
}


def build(repository: Path) -> None:
    """Write everything under `repository`, which must be empty or missing."""
    for name, (config, source) in MEMBERS.items():
        for version in VERSIONS.get(name, (1,)):
            folder = repository / name / str(version)
            folder.mkdir(parents=True)
            (folder / "model.py").write_text(source, encoding="utf-8")
        (repository / name / "config.pbtxt").write_text(config, encoding="utf-8")
    for name, config in ENSEMBLES.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config, encoding="utf-8")

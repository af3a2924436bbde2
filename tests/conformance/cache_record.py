"""Cached models and rate limited models: their repository, the requests, and how their transcripts are recorded.

`python -m tests.conformance.cache_record --build DIRECTORY`, a server of that repository in mode explicit with FLAGS, then
`python -m tests.conformance.cache_record HOST:PORT > transcripts/cache.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from .cases import Case
from .generate_record import Exchange, exchange

FLAGS = (
    "--cache-config=local,size=1048576",
    "--rate-limit=execution_count",
    "--rate-limit-resource=R1:4",
    "--rate-limit-resource=R1:3:0",
    "--rate-limit-resource=G:2:5",
)

_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        self.count += 1
        given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        count = np.full((given.shape[0], 1), self.count, np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given * 2), pb_utils.Tensor("COUNT", count)])
"""

_INPUT = 'input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]\n'
_OUTPUT = (
    'output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
)
_CACHE = "response_cache { enable: true }\n"
_STEP = (
    'platform: "ensemble"\nmax_batch_size: 4\nensemble_scheduling { step [ { model_name: "plain" model_version: -1 '
    'input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } '
    'output_map { key: "COUNT" value: "COUNT" } } ] }\n'
)


def _model(more: str = "", group: str = "") -> str:
    head = f'backend: "python"\nmax_batch_size: 4\n{_INPUT}{_OUTPUT}'
    return f"{head}instance_group [ {{ kind: KIND_CPU count: 1 {group} }} ]\n{more}"


def _needs(*resources: str) -> str:
    return "rate_limiter { " + " ".join(f"resources [ {{ {resource} }} ]" for resource in resources) + " }"


MODELS = {
    "plain": _model(),
    "cached": _model(_CACHE),
    "cached_dynamic": _model(_CACHE + "dynamic_batching { }\n"),
    "cached_sequence": _model(_CACHE + "sequence_batching { }\n"),
    "cached_decoupled": _model(_CACHE + "model_transaction_policy { decoupled: true }\n"),
    "cached_ensemble": _INPUT + _OUTPUT + _STEP + _CACHE,
    "needs_4": _model(group=_needs('name: "R1" count: 4')),
    "needs_5": _model(group=_needs('name: "R1" count: 5')),
    "needs_unknown": _model(group=_needs('name: "r1" count: 1')),
    "needs_none_of_it": _model(group=_needs('name: "r1" count: 0')),
    "needs_global": _model(group=_needs('name: "G" global: true count: 2')),
    "needs_global_3": _model(group=_needs('name: "G" global: true count: 3')),
    "needs_both": _model(group=_needs('name: "G" global: true count: 1', 'name: "G" count: 0')),
}


def build(repository: Path) -> None:
    """Write the repository."""
    for name, config in MODELS.items():
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        if "ensemble" not in config:
            (folder / "model.py").write_text(_MODEL)


def _infer(name: str, model: str, data: list[int], **more: Any) -> Case:
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, len(data)], "data": data}
    return Case(name=name, path=f"/v2/models/{model}/infer", body=json.dumps({"inputs": [tensor], **more}).encode())


def _cases() -> Iterator[Case]:
    for model in MODELS:
        yield Case(name=f"load {model}", path=f"/v2/repository/models/{model}/load", body=b"{}")
    for model in ("cached", "cached_dynamic", "cached_ensemble"):
        for step, data in enumerate(([1, 2], [1, 2], [3, 4], [1, 2], [3, 4])):
            yield _infer(f"{model} {step}", model, data, id=str(step))
        yield Case(name=f"stats of {model}", method="GET", path=f"/v2/models/{model}/stats")
    yield _infer("rate limited", "needs_4", [1])
    yield _infer("rate limited by the machine", "needs_global", [1])


CASES: tuple[Case, ...] = tuple(_cases())


def record(address: str) -> dict[str, Exchange]:
    """The answer to every case, by name."""
    return {case.name: exchange(address, case) for case in CASES}


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--build":
        build(Path(sys.argv[2]))
    elif len(sys.argv) == 2:
        print(msgspec.json.format(msgspec.json.encode(record(sys.argv[1])), indent=1).decode())
    else:
        raise SystemExit(__doc__)

"""The model repository of the transcripts of calls from model to model: callers that do what their input names, and callees."""

from __future__ import annotations

from pathlib import Path

from .bls_models import ASYNC, BROKEN, COPY, DECOUPLED, FAILING, IDENTITY, SEEN, SLOW, SUM, SYNC, WORDS


def _tensor(name: str, datatype: str, dims: str = "[ -1 ]") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{datatype} dims: {dims} }}'


def config(inputs: str, outputs: str, more: str = "", backend: str = 'backend: "python"') -> str:
    """A config.pbtxt without batching, one instance."""
    groups = "instance_group [ { kind: KIND_CPU } ]" if backend.startswith("backend") else ""
    return f"{backend}\nmax_batch_size: 0\ninput [ {inputs} ]\noutput [ {outputs} ]\n{groups}\n{more}\n"


_NUMBERS = (_tensor("INPUT0", "INT32"), _tensor("OUTPUT0", "INT32"))
_CASES = (_tensor("DO", "STRING", "[ 1 ]"), _tensor("SAID", "STRING", "[ 1 ]"))
_TWO_STEPS = """ensemble_scheduling { step [
  { model_name: "%s" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "MIDDLE" } },
  { model_name: "ident" model_version: -1
    input_map { key: "INPUT0" value: "MIDDLE" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
] }"""
_SEQUENCE = """sequence_batching { max_sequence_idle_microseconds: 60000000
  control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ] }"""
DECOUPLED_POLICY = "model_transaction_policy { decoupled: true }"

MODELS: dict[str, tuple[str, str | None]] = {
    "caller": (config(*_CASES), SYNC),
    "acaller": (config(*_CASES), ASYNC),
    "dcaller": (config(*_CASES, DECOUPLED_POLICY), DECOUPLED),
    "middle": (config(*_CASES), SYNC),
    "ident": (config(*_NUMBERS), IDENTITY),
    "idle": (config(*_NUMBERS), IDENTITY),
    "copy": (config(_tensor("OUTPUT0", "INT32"), _tensor("INPUT0", "INT32")), COPY),
    "failing": (config(*_NUMBERS), FAILING),
    "slow": (config(*_NUMBERS), SLOW),
    "seen": (config(*_CASES), SEEN),
    "words": (config(_tensor("DO", "STRING", "[ 1 ]"), _tensor("WORD", "STRING", "[ 1 ]"), DECOUPLED_POLICY), WORDS),
    "sum": (config(*_NUMBERS, _SEQUENCE), SUM),
    "chain": (config(*_NUMBERS, _TWO_STEPS % "ident", backend='platform: "ensemble"'), None),
    "chain_failing": (config(*_NUMBERS, _TWO_STEPS % "failing", backend='platform: "ensemble"'), None),
    "broken": (
        config(*_NUMBERS),
        BROKEN,
    ),
}
"""Name -> (config.pbtxt, model.py). `idle` and `broken` are not loaded at the start; `made` comes into being by a call."""

NOT_LOADED = ("idle", "broken")


def build(repository: Path) -> None:
    """Write everything under `repository`, which must be empty or missing."""
    for name, (text, source) in MODELS.items():
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text, encoding="utf-8")
        if source is not None:
            (folder / "model.py").write_text(source, encoding="utf-8")

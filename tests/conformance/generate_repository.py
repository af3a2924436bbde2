"""The model repository of the generate transcripts: decoupled models, and ordinary ones behind the same endpoints. Built, never
committed."""

from __future__ import annotations

from pathlib import Path

from .repository import IDENTITY, PARAMETERS

STREAM = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def words(*texts):
    return pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array([t.encode() for t in texts], dtype=np.object_))])

def error(text, code="INTERNAL"):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, getattr(pb_utils.TritonError, code)))

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            do = pb_utils.get_input_tensor_by_name(request, "DO").as_numpy().reshape(-1)[0].decode()
            sender = request.get_response_sender()
            if do == "raise":
                raise ValueError("something broke")
            if do == "raise after one":
                sender.send(words("one"))
                raise ValueError("something broke later")
            if do == "misuse":
                said = []
                for misuse in (lambda: sender.send(), lambda: sender.send(words("x"), 7),
                               lambda: sender.send(words("one"), FINAL),
                               lambda: sender.send(words("two"))):
                    try:
                        misuse()
                    except BaseException as e:
                        said.append(f"{type(e).__name__}: {e}")
                self.said = said
                continue
            if do == "said":
                sender.send(words(*self.said), FINAL)
                continue
            if do == "later":
                threading.Thread(target=self.answer, args=(sender, "1 2 3")).start()
                continue
            if do == "list":
                sender.send(words("listed"), FINAL)
                return [words("no")]
            self.answer(sender, do)
        return None

    def answer(self, sender, do):
        parts = do.split()
        for position, part in enumerate(parts):
            last = position == len(parts) - 1
            if part == "final":
                sender.send(flags=FINAL)
                return
            if part == "!":
                sender.send(error("in the middle"))
            elif part == "!bad":
                sender.send(error("model says no", "INVALID_ARG"))
            elif part == "!end":
                sender.send(error("at the end", "UNAVAILABLE"), FINAL)
                return
            elif part == "none":
                sender.send(pb_utils.InferenceResponse([]))
            elif part.endswith("."):
                sender.send(words(part[:-1]), FINAL)
                return
            else:
                sender.send(words(*part.split(",")))
        sender.send(flags=FINAL)
"""

_KIND = "instance_group [ { kind: KIND_CPU } ]\n"


def _config(batch: int, inputs: str, outputs: str, more: str = "") -> str:
    return f'backend: "python"\nmax_batch_size: {batch}\n{_KIND}input [ {inputs} ]\noutput [ {outputs} ]\n{more}\n'


def _tensor(name: str, datatype: str, dims: str, more: str = "") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{datatype} dims: {dims} {more} }}'


def _identity(batch: int, datatype: str, dims: str) -> tuple[str, str]:
    return _config(batch, _tensor("INPUT0", datatype, dims), _tensor("OUTPUT0", datatype, dims)), IDENTITY


_DECOUPLED = "model_transaction_policy { decoupled: true }"
_WORDS = (_tensor("DO", "STRING", "[ 1 ]"), _tensor("WORD", "STRING", "[ -1 ]"))

MODELS: dict[str, tuple[str, str]] = {
    "stream": (_config(0, *_WORDS, _DECOUPLED), STREAM),
    "int": _identity(0, "INT32", "[ -1 ]"),
    "grid": _identity(0, "INT32", "[ -1, 2 ]"),
    "wild": _identity(0, "INT32", "[ -1, -1 ]"),
    "fixed": _identity(4, "FP32", "[ 2, 2 ]"),
    "batch": _identity(4, "FP32", "[ -1 ]"),
    "text": _identity(4, "STRING", "[ 1 ]"),
    "flag": _identity(0, "BOOL", "[ -1 ]"),
    "byte": _identity(0, "UINT8", "[ -1 ]"),
    "half": _identity(0, "FP16", "[ -1 ]"),
    "double": _identity(0, "FP64", "[ -1 ]"),
    "long": _identity(0, "UINT64", "[ -1 ]"),
    "two": (
        _config(
            0,
            f"{_tensor('INPUT0', 'INT32', '[ -1 ]')}, {_tensor('INPUT1', 'STRING', '[ -1 ]', 'optional: true')}",
            f"{_tensor('OUTPUT0', 'INT32', '[ -1 ]')}, {_tensor('OUTPUT1', 'STRING', '[ -1 ]')}",
        ),
        IDENTITY,
    ),
    "seen": (_config(0, _tensor("INPUT0", "INT32", "[ 1 ]"), _tensor("SEEN", "STRING", "[ 1 ]")), PARAMETERS),
}
"""Name -> (config.pbtxt, model.py)."""


def build(repository: Path) -> None:
    """Write everything under `repository`, which must be empty or missing."""
    for name, (config, source) in MODELS.items():
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config, encoding="utf-8")
        (folder / "model.py").write_text(source, encoding="utf-8")

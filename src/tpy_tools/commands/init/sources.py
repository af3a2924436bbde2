"""A table of the files that can be made into models, and the call of their environment."""

from __future__ import annotations

import enum
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import orjson

from tpy.cli.parsing import UsageError
from tpy.config.model_files import advice_for_file
from tpy.messages.datatypes import BY_WORD
from tpy_tools.commands.init.convert import Input

_CONVERT = Path(__file__).with_name("convert.py")


class ModelForm(enum.Enum):
    """The form that is served: --as."""

    ONNX = "onnx"
    PYTHON = "python"
    TORCHSCRIPT = "torchscript"
    PYTORCH = "pytorch"
    FIL = "fil"
    LITERT = "litert"
    OPENVINO = "openvino"
    TENSORFLOW = "tensorflow"


class Way(NamedTuple):
    """From a file to a form: the action of convert.py that makes it, "" where the file is copied; `filename` is the result's."""

    action: str
    filename: str


_PICKLE = {ModelForm.ONNX: Way("pickle-to-onnx", "model.onnx"), ModelForm.PYTHON: Way("describe-pickle", "model.py")}
_PICKLES = (".joblib", ".pkl", ".pickle")
_TORCH = {ModelForm.TORCHSCRIPT: Way("torch-to-torchscript", "model.pt"), ModelForm.ONNX: Way("torch-to-onnx", "model.onnx")}
_TO_ONNX = Way("xgboost-to-onnx", "model.onnx")
_UBJSON = {ModelForm.FIL: Way("", "xgboost.ubj"), ModelForm.ONNX: _TO_ONNX}
_XGBOOST = {ModelForm.FIL: Way("", "xgboost.model"), ModelForm.ONNX: _TO_ONNX}
_LIGHTGBM = {ModelForm.FIL: Way("", "model.txt"), ModelForm.ONNX: Way("lightgbm-to-onnx", "model.onnx")}
_KERAS = {ModelForm.ONNX: Way("keras-to-onnx", "model.onnx")}

WAYS: Mapping[str, Mapping[ModelForm, Way]] = {
    ".onnx": {ModelForm.ONNX: Way("", "model.onnx")},
    ".py": {ModelForm.PYTHON: Way("", "model.py")},
    ".joblib": _PICKLE,
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
    ".pt": _TORCH,
    ".pth": _TORCH,
    ".pt2": {ModelForm.PYTORCH: Way("torch-program", "model.pt2")},
    ".xgb": _XGBOOST,
    ".ubj": _UBJSON,
    ".bst": _XGBOOST,
    ".model": _XGBOOST,
    ".json": {ModelForm.FIL: Way("", "xgboost.json"), ModelForm.ONNX: _TO_ONNX},
    ".lgb": _LIGHTGBM,
    ".txt": _LIGHTGBM,
    ".keras": _KERAS,
    ".h5": _KERAS,
    ".tl": {ModelForm.FIL: Way("", "checkpoint.tl")},
    ".tflite": {ModelForm.LITERT: Way("", "model.tflite")},
    ".xml": {ModelForm.OPENVINO: Way("", "model.xml")},
    ".graphdef": {ModelForm.TENSORFLOW: Way("", "model.graphdef")},
}
"""By suffix; the first form of each is the default."""

NEED_INPUTS = frozenset({"pickle-to-onnx", "describe-pickle", "torch-to-torchscript", "torch-to-onnx", "torch-program"})
"""The actions for files that may not say their inputs."""

_SAVED_MODEL = {ModelForm.TENSORFLOW: Way("", "model.savedmodel")}


def _ways(source: Path) -> Mapping[ModelForm, Way] | None:
    """Of a file, or of the folder of a SavedModel."""
    if source.is_dir():
        return _SAVED_MODEL if is_saved_model(source) else None
    return WAYS.get(source.suffix.lower())


def is_saved_model(source: Path) -> bool:
    """Returns True if a folder is one that TensorFlow has saved a model to."""
    return any((source / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt"))


class Conversion(msgspec.Struct, frozen=True):
    """The answer of convert.py."""

    facts: dict[str, object] = {}
    error: str = ""
    missing: Sequence[str] = ()


def choose(source: Path, form: ModelForm | None) -> tuple[ModelForm, Way]:
    """The form to make of a file, and how. Raises UsageError."""
    ways = _ways(source)
    if ways is None:
        raise UsageError(f"{advice_for_file(source.name, folder=str(source.parent))}; tpy init reads {', '.join(WAYS)}")
    chosen = form or next(iter(ways))
    if chosen not in ways:
        raise UsageError(f"--as {chosen.value}: of {source.name} can be made: {', '.join(each.value for each in ways)}")
    return chosen, ways[chosen]


def forms_of(source: Path) -> set[ModelForm]:
    """The forms that can be made of a file."""
    return set(_ways(source) or ())


def parse_input(text: str) -> Input:
    """--input NAME:TYPE:SIZES, the sizes being those of one row. Raises UsageError."""
    parts = text.split(":")
    expected = "expected NAME:TYPE:SIZES of one row, such as X:FP32:3,224,224"
    if len(parts) != 3 or not parts[0]:
        raise UsageError(f"--input {text}: {expected}")
    name, datatype, sizes = parts
    if datatype not in BY_WORD:
        raise UsageError(f"--input {text}: unknown type '{datatype}'; {expected}, with a type of {', '.join(BY_WORD)}")
    try:
        dims = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    except ValueError:
        raise UsageError(f"--input {text}: sizes are whole numbers, -1 for any; {expected}") from None
    return Input(name, datatype, dims)


def interpreter_of(environment: Path | None) -> Path:
    """The Python of a virtual environment; this one without any. Raises UsageError."""
    if environment is None:
        return Path(sys.executable)
    for name in ("python3", "python"):
        if (environment / "bin" / name).exists():
            return environment / "bin" / name
    raise UsageError(f"--env {environment}: not a virtual environment: it has no bin/python3")


def advice_for_source_folder(source: Path) -> str:
    """Advice for a folder of another tool; "" for one that says nothing."""
    if (source / "MLmodel").is_file():
        return f"a model of MLflow; tpy import {source}"
    if (source / "config.json").is_file():
        return f"a model of Hugging Face; tpy import {source}"
    return ""


def converted(
    action: str, source: Path, target: Path, inputs: Sequence[Input], environment: Path | None, network: str = ""
) -> dict[str, object]:
    """Run convert.py; what it found out. Raises UsageError."""
    task = {
        "action": action,
        "source": str(source.resolve()),
        "target": str(target.resolve()),
        "inputs": [list(each) for each in inputs],
        "network": network,
    }
    python = interpreter_of(environment)
    command: list[str | Path] = [python, "-W", "ignore", _CONVERT, orjson.dumps(task).decode()]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    try:
        result = msgspec.json.decode(lines[-1] if lines else "", type=Conversion)
    except msgspec.DecodeError:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise UsageError(f"{source}: the conversion failed: {said[-1]}") from None
    if result.missing:
        packages = " ".join(result.missing)
        elsewhere = "" if environment else "; or name the virtual environment that the model was made in: --env DIRECTORY"
        own = "; or, if that is your own module, run tpy init in its folder" if source.suffix in _PICKLES else ""
        raise UsageError(f"{source}: this needs {packages}: {python} -m pip install {packages}{elsewhere}{own}")
    if result.error:
        raise UsageError(f"{source}: {result.error}")
    return result.facts

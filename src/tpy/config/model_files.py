"""Model files by backend, the files that belong to one, and advice on files that no backend serves, for people whose folder is
not served."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from tpy.config.known_backends import BACKEND_OF_SUFFIX

_NAMES_SHOWN_MAX = 8
_CONVERTED = "tpy init NAME --from {path} makes an ONNX model of it"
_IN_PYTHON = "load it in a model.py"


class _Unserved(NamedTuple):
    """A kind of file that no backend of this server reads, and what to do."""

    kind: str
    advice: str


_PICKLE = _Unserved("a pickle, of scikit-learn perhaps", f"{_CONVERTED}; or {_IN_PYTHON}; or see backend 'sklearn'")
_FOLDER = "tpy init NAME --from {path} makes a model folder of it"
_XGBOOST = _Unserved("a model of XGBoost", _FOLDER)
_LIGHTGBM = _Unserved("a model of LightGBM", _FOLDER)
_KERAS = _Unserved("a model of Keras", f"{_CONVERTED}; or {_IN_PYTHON}")
_WEIGHTS = _Unserved(
    "weights without their network", f"export the network with them (torch.onnx.export, torch.jit.script), or {_IN_PYTHON}"
)

_UNSERVED: Final[Mapping[str, _Unserved]] = {
    ".joblib": _PICKLE,
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
    ".xgb": _XGBOOST,
    ".bst": _XGBOOST,
    ".lgb": _LIGHTGBM,
    ".keras": _KERAS,
    ".h5": _KERAS,
    ".pth": _WEIGHTS,
    ".ckpt": _WEIGHTS,
    ".safetensors": _WEIGHTS,
    ".pb": _Unserved(
        "a graph of TensorFlow",
        "rename it model.graphdef if it is a frozen graph; that of a SavedModel belongs into a folder model.savedmodel",
    ),
    ".gguf": _Unserved("a language model of llama.cpp", _IN_PYTHON),
    ".engine": _Unserved("an engine of TensorRT", "rename it to model.plan"),
}

_BACKEND_ADVICE: Final[Mapping[str, str]] = {}


def files_beside(source: Path) -> list[Path]:
    """Returns the files that belong to the model file `source`: the weights beside a large ONNX model, which names them, or
    those of OpenVINO's IR."""
    name, stem = escape(source.name), escape(source.stem)
    found = {file for pattern in (f"{name}.*", f"{name}?data", f"{stem}.data") for file in source.parent.glob(pattern)}
    if source.suffix == ".xml":
        found.update(source.parent.glob(f"{stem}.bin"))
    return sorted(found - {source})


ADVICE_FOR_BACKEND: Final = "convert the model to ONNX, or run it in a model.py (backend 'python')"
"""For a model whose backend is not there."""


def unserved_files(names: Iterable[str]) -> list[str]:
    """Those of the names that are models which no backend here reads."""
    return sorted(name for name in names if _unserved(name) is not None)


def advice_for_file(name: str, *, folder: str) -> str:
    """Advice for a file that no backend reads."""
    found = _unserved(name)
    if found is not None:
        return f"{name} is {found.kind}, which is not served as it is; {found.advice.format(path=f'{folder}/{name}')}"
    if name.endswith(".py"):
        return f"{name} is not a model; a Python model is called model.py"
    return f"{name} is not a model; expected model.onnx, model.pt or model.py, or a file that ends in .onnx, .pt or .pt2"


def advice_for_folder(names: Collection[str] | None, beside: Collection[str] = (), *, folder: str) -> str:
    """Advice for a folder without the expected model file. `names` are those in the version folder, None without
    one; `beside` those in the model's own folder; folders end in "/"."""
    if names is None:
        misplaced = sorted(name for name in beside if _is_model_file(name) or _unserved(name) is not None)
        step = f"; move {misplaced[0]} into {folder}/1" if misplaced else ""
        versions = [name for name in sorted(beside) if name.endswith("/") and rename_advice(name[:-1])]
        if versions and not misplaced:
            step = f"; {versions[0]}: {rename_advice(versions[0][:-1])}"
        elif not misplaced and any(name.endswith("/") for name in beside):
            step = f"; if {folder} is a repository itself: tpy serve {folder}"
        return f"a version folder, such as {folder}/1, with a model file; found {_listed(beside)}{step}"
    expected = "model.onnx, model.pt or model.py in the version folder"
    unserved = unserved_files(names)
    if unserved:
        return f"{expected}; found {_listed(names)}: {advice_for_file(unserved[0], folder=f'{folder}/1')}"
    named = sorted(name for name in names if PurePosixPath(name).suffix in BACKEND_OF_SUFFIX)
    if named:
        backend = BACKEND_OF_SUFFIX[PurePosixPath(named[0]).suffix]
        return (
            f"{expected}; found {_listed(names)}: rename {named[0]}, or write into {folder}/config.pbtxt: "
            f'backend: "{backend}" default_model_filename: "{named[0]}"'
        )
    return f"{expected}; found {_listed(names)}"


_ALMOST_A_VERSION = re.compile(r"(?:v|ver|version)[-_.]?0*([1-9][0-9]{0,8})", re.IGNORECASE)


def rename_advice(folder: str) -> str:
    """Advice for a version folder whose name is not its number; "" for names that are not meant for one."""
    found = _ALMOST_A_VERSION.fullmatch(folder)
    return f"rename it to {found[1]}" if found else ""


def listed_files(names: Iterable[str]) -> str:
    """The names, for a message: sorted, the first few."""
    return _listed(list(names))


def _listed(names: Collection[str]) -> str:
    if not names:
        return "nothing"
    shown = sorted(names)[:_NAMES_SHOWN_MAX]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more


def _is_model_file(name: str) -> bool:
    return name == "model.py" or PurePosixPath(name).suffix in BACKEND_OF_SUFFIX


def _unserved(name: str) -> _Unserved | None:
    path = PurePosixPath(name)
    return _UNSERVED.get(name) or _UNSERVED.get(path.suffix.lower())

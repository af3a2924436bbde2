"""Nothing that comes over a wire becomes code: no pickle, no eval, no shell; regular expressions that take linear time."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tpy
import tpy_backends
import tpy_cloud
import tpy_control
import tpy_data
import tpy_native
import tpy_page
import tpy_platforms
import tpy_tools
from tests.pace import at_pace

PACKAGES = (tpy, tpy_backends, tpy_cloud, tpy_control, tpy_data, tpy_native, tpy_page, tpy_platforms, tpy_tools)
FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "yaml",
    "xml",
    "telnetlib",
    "code",
}
LOCAL_TOOLS = {
    "commands/init/convert.py",
    "commands/infer_request.py",
    "ray/__main__.py",
    "commands/importing/serving.py",
    "commands/importing/ts/utils/util.py",
}
"""Commands that read files of the user who types them, never what comes over a wire: `tpy init` loads a trained model, which its
help says runs the code in it, and `tpy infer` an array without objects. That of Ray writes YAML, and reads none; models of
`tpy import` read some without objects."""

BEHIND_A_SWITCH = {"sklearn/files.py"}
"""Reads pickles if the operator of the server says so by a flag: neither a repository nor a client can."""

FORBIDDEN_FUNCTIONS = {"eval", "exec", "compile", "os.system", "os.popen", "np.load", "tempfile.mktemp"}


def _sources() -> Iterator[Path]:
    for package in PACKAGES:
        root = Path(package.__path__[0])
        yield from (path for path in root.rglob("*.py") if path.relative_to(root).as_posix() not in LOCAL_TOOLS | BEHIND_A_SWITCH)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell() -> None:
    found = []
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            place = f"{path}:{getattr(node, 'lineno', 0)}"
            found += [f"{place} imports {name}" for name in _imported(node) if name.split(".")[0] in FORBIDDEN_MODULES]
            if not isinstance(node, ast.Call):
                continue
            words = [ast.unparse(word) for word in node.keywords]
            if ast.unparse(node.func) in FORBIDDEN_FUNCTIONS:
                found.append(f"{place} calls {ast.unparse(node.func)}")
            if ast.unparse(node.func) == "torch.load" and "weights_only=True" not in words:
                found.append(f"{place} unpickles with torch.load")
            found += [f"{place} {word.arg}" for word in node.keywords if word.arg in ("shell", "allow_pickle")]
    assert found == []


ELSEWHERE = (
    "tpy_tools.commands.mlflow_deployments",
    "tpy.ray",
    "tpy._proto",
    "tpy_tools.commands.importing.ts",
    "tpy_tools.commands.importing.mls",
)


def _modules(package: ModuleType) -> Iterator[str]:
    """Its modules that can be imported anywhere: not those of Ray, whose import warns, nor packages for imported models."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if module.name in ELSEWHERE or module.name.endswith("__main__"):
            continue
        yield module.name
        if module.ispkg:
            yield from _modules(importlib.import_module(module.name))


def _patterns() -> dict[str, re.Pattern[str] | re.Pattern[bytes]]:
    """Every regular expression that a module of ours holds."""
    found: dict[str, re.Pattern[str] | re.Pattern[bytes]] = {}
    for package in (tpy, tpy_cloud, tpy_control, tpy_platforms, tpy_tools):
        for name in _modules(package):
            for variable, value in vars(importlib.import_module(name)).items():
                if isinstance(value, re.Pattern):
                    found[f"{name}.{variable}"] = value
    return found


PATTERNS = _patterns()
HOSTILE = ["a", "0", " ", "-", "\\", '"', "/", ".", "%", ",", "1.", "a,", " \t", "\\u", "-Inf", "0 ", "a/", "{", "\n", "#"]


@pytest.mark.parametrize("name", PATTERNS)
def test_regular_expressions_take_linear_time(name: str) -> None:
    """A pattern that goes back and forth needs hours for one of these texts, not a second."""
    pattern = PATTERNS[name]
    began = time.thread_time()
    for piece in HOSTILE:
        for end in ("", "\0", "!"):
            text = piece * (20_000 // len(piece)) + end
            subject: str | bytes = text.encode() if isinstance(pattern.pattern, bytes) else text
            pattern.match(subject)  # type: ignore[arg-type]  # text for text, bytes for bytes
            pattern.fullmatch(subject)  # type: ignore[arg-type]  # the same
    assert time.thread_time() - began < at_pace(2.0)

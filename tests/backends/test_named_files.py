"""Every file that a configuration names: a pipe, a device, a missing or a huge file is refused, and nobody waits for it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tpy.backend import InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import (
    DynamicBatching,
    InstanceKind,
    ModelOperations,
    ModelOutput,
    ModelParameter,
)
from tpy.config.schema import MODEL_CONFIG, MessageSchema, Scalar
from tpy.errors import TpyError
from tpy_backends import file_backend
from tpy_backends.openvino.settings import model_settings
from tpy_backends.parameter_values import operator_libraries
from tpy_backends.tensorflow.settings import read_init_ops
from tpy_data.backends.python.environment.interpreters import Environments
from tpy_data.engine.loading.model_files import read_beside, read_labels
from tpy_data.strategies import find_strategy
from tpy_platforms.openai.templates import read_template, template_of

_SOURCES = Path(__file__).parents[2]
_HUGE_BYTES = 3 << 30


def _context(folder: Path, config: ModelConfig) -> ModelContext:
    return ModelContext(name="m", version=1, generation=1, config=config, model_directory=folder, version_directory=folder)


def _parameter(name: str, value: Path) -> ModelConfig:
    return ModelConfig(name="m", parameters={name: ModelParameter(string_value=str(value))}, dynamic_batching=DynamicBatching())


def _by_capability(path: Path) -> None:
    config = ModelConfig(name="m", cc_model_filenames={"9.0": path.name})
    placement = InstancePlacement(name="m_0", kind=InstanceKind.KIND_GPU, device_id=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_backend, "compute_capability", lambda device: (9, 0))
        file_backend.model_file(_context(path.parent, config), ("other",), placement=placement)


FIELDS: Mapping[str, Callable[[Path], object]] = {
    "label_filename": lambda path: read_labels(
        ModelConfig(output=(ModelOutput(name="O", label_filename=path.name),)), path.parent
    ),
    "input_data_file": lambda path: read_beside(path.parent, path.name),
    "data_file": lambda path: read_beside(path.parent, path.name),
    "op_library_filename": lambda path: operator_libraries(
        _context(path.parent, ModelConfig(name="m", model_operations=ModelOperations(op_library_filename=(str(path),))))
    ),
    "default_model_filename": lambda path: file_backend.model_file(
        _context(path.parent, ModelConfig(name="m", default_model_filename=path.name)), ("other",)
    ),
    "cc_model_filenames": _by_capability,
}
PARAMETERS: Mapping[str, Callable[[Path], object]] = {
    "EXECUTION_ENV_PATH": lambda path: Environments().interpreter(_context(path.parent, _parameter("EXECUTION_ENV_PATH", path))),
    "TRITON_BATCH_STRATEGY_PATH": lambda path: find_strategy(_parameter("TRITON_BATCH_STRATEGY_PATH", path), path.parent, ()),
    "CPU_EXTENSION_PATH": lambda path: model_settings(_parameter("CPU_EXTENSION_PATH", path), ()),
    "TF_INIT_OPS_FILE": lambda path: read_init_ops(_context(path.parent, ModelConfig(name="m")), path.name),
}
OTHERS: Mapping[str, Callable[[Path], object]] = {
    "tokenizer": lambda path: template_of("m", {"tokenizer": str(path)}, None),
    "tokenizer, the file in its folder": lambda path: template_of(
        "m", {"tokenizer": str(_folder(path, "tokenizer_config.json"))}, None
    ),
    "tokenizer, the template beside": lambda path: template_of(
        "m", {"tokenizer": str(_folder(path, "chat_template.jinja"))}, None
    ),
    "--openai-chat-template": lambda path: read_template(str(path), flag="openai-chat-template"),
}
ALL = {**FIELDS, **PARAMETERS, **OTHERS}
MAY_BE_LARGE = {
    "EXECUTION_ENV_PATH",
    "op_library_filename",
    "CPU_EXTENSION_PATH",
    "default_model_filename",
    "cc_model_filenames",
    "TRITON_BATCH_STRATEGY_PATH",
}
"""The loader of the system maps libraries, and backends read models and archives: these may be as large as they like. A library
that is not there may be one that the loader finds by its name."""
FOUND_BY_NAME = {"op_library_filename", "CPU_EXTENSION_PATH"}


def _folder(path: Path, name: str) -> Path:
    """A folder with this file under that name."""
    folder = path.parent / "tokenizer"
    folder.mkdir()
    if name != "tokenizer_config.json":
        (folder / "tokenizer_config.json").write_text("{}")
    (folder / name).symlink_to(path)
    return folder


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(_HUGE_BYTES)


def _missing(path: Path) -> None:
    """Nothing is there."""


@pytest.mark.parametrize("kind", [_pipe, _device, _huge, _missing])
@pytest.mark.parametrize("name", ALL)
def test_it_is_refused(name: str, kind: Callable[[Path], None], tmp_path: Path) -> None:
    if (kind is _huge and name in MAY_BE_LARGE) or (kind is _missing and name in FOUND_BY_NAME):
        pytest.skip("may be so")
    path = tmp_path / "m" / "file.so"
    path.parent.mkdir()
    kind(path)
    with pytest.raises(TpyError):
        ALL[name](path)


def test_no_field_is_forgotten() -> None:
    named = {
        field.name
        for field in _fields(MODEL_CONFIG, set())
        if re.search("(^|_)(file|path)", field.name) and field.kind is Scalar.STRING
    }
    assert named == set(FIELDS)


def _fields(schema: MessageSchema, seen: set[str]) -> list[object]:
    found = []
    for field in schema.fields.values():
        found.append(field)
        if isinstance(field.kind, MessageSchema) and field.kind.full_name not in seen:
            seen.add(field.kind.full_name)
            found += _fields(field.kind, seen)
    return found


def test_no_parameter_is_forgotten() -> None:
    """Parameters that name files end so: whatever looks like one in the sources is tried here."""
    found = set()
    for folder in ("data", "src/tpy/config", "src/tpy_platforms/openai", "src/tpy/backend"):
        for source in (_SOURCES / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(source.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found |= {node.value} & set(re.findall("^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_(?:PATH|FILE)$", node.value))
    assert found - {"LD_LIBRARY_PATH"} == set(PARAMETERS)

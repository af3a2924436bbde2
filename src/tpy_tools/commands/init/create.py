"""Makes the folder: in a temporary place beside it, so that nobody serves half of it."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from tpy.backend import ModelContext
from tpy.cli.parsing import UsageError
from tpy.config import ModelConfig
from tpy.config.known_backends import BACKEND_OF_FILE
from tpy.config.model_config import EXECUTION_ENVIRONMENT, ModelParameter
from tpy.config.model_files import files_beside
from tpy.errors import TpyError
from tpy_data.registry import BackendRegistry
from tpy_tools.commands.init.convert import Input
from tpy_tools.commands.init.folder import (
    as_json,
    config_text,
    model_py,
    pickle_tensors,
    sample_request,
    sample_values,
    torch_tensors,
)
from tpy_tools.commands.init.sources import (
    NEED_INPUTS,
    ModelForm,
    Way,
    advice_for_source_folder,
    choose,
    converted,
    forms_of,
    interpreter_of,
    is_saved_model,
)

_BATCH_SIZE = 64
"""Written where the model takes batches: the 4 of auto-completion is refused too soon."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")


class InitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the command. `form` None: what the file is best made into. `environment` is the virtual environment that
    the model was made in; it is converted there, and a Python model runs there. `network`: FILE:CLASS of the network whose
    weights the file has."""

    name: str
    source: Path
    repository: Path
    form: ModelForm | None = None
    inputs: Sequence[Input] = ()
    environment: Path | None = None
    network: str = ""


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """A version folder's files, with what was done for each, the configuration as far as it is known, and texts that inputs
    are known to take."""

    done: dict[str, str]
    config: ModelConfig
    texts: dict[str, str] = {}


def create(request: InitRequest) -> list[str]:
    """Make the folder; lines that say what was done. Raises UsageError."""
    folder = request.repository / request.name
    if not _NAME.fullmatch(request.name):
        raise UsageError(f"'{request.name}' is not a valid model name; expected letters, digits, '_', '-' and '.'")
    if folder.exists():
        raise UsageError(f"{folder} is there already; choose another name, or remove it")
    if request.source.is_dir() and not is_saved_model(request.source):
        advice = advice_for_source_folder(request.source)
        raise UsageError(
            f"--from {request.source}: {advice or 'a folder without saved_model.pb; expected a model file, or a SavedModel'}"
        )
    if not request.source.exists():
        raise UsageError(f"--from {request.source}: no such file")
    request.repository.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tpy-init-", dir=request.repository) as scratch:
        building = Path(scratch) / request.name
        (building / "1").mkdir(parents=True)
        form, way = choose(request.source, request.form)
        if request.inputs and way.action not in NEED_INPUTS:
            why = "write them into its config.pbtxt" if form is ModelForm.PYTHON else "the file describes its inputs"
            raise UsageError(f"--input: not accepted for {request.source.name}: {why}")
        made = _make(request, building, form, way)
        config = _completed(made.config, building, request.source, forms_of(request.source) - {form})
        (building / "config.pbtxt").write_text(config_text(config), encoding="utf-8")
        if config.input:
            (building / "request.json").write_text(as_json(sample_request(config, made.texts)) + "\n", encoding="utf-8")
        building.rename(folder)
    return [*_summary(folder, made, config), *_next_steps(folder, config, made.texts)]


def _make(request: InitRequest, building: Path, form: ModelForm, way: Way) -> _Made:
    target = building / "1" / way.filename
    config = ModelConfig(name=request.name, backend=BACKEND_OF_FILE[way.filename], default_model_filename=way.filename)
    environment = None if request.environment is None else request.environment.absolute()
    interpreter_of(environment)
    if environment is not None and form is ModelForm.PYTHON:
        config = msgspec.structs.replace(
            config, parameters={EXECUTION_ENVIRONMENT: ModelParameter(string_value=str(environment))}
        )
    if way.action == "describe-pickle":
        facts = converted(way.action, request.source, target, request.inputs, environment)
        copied = shutil.copy2(request.source, target.parent / request.source.name)
        modules = _with_modules(facts, target.parent)
        target.write_text(model_py(facts, request.source.name), encoding="utf-8")
        given, outputs = pickle_tensors(facts)
        config = msgspec.structs.replace(config, max_batch_size=_BATCH_SIZE, input=given, output=outputs)
        done = {
            "1/model.py": "calls its predict; change it as you like",
            f"1/{Path(copied).name}": f"copied from {request.source}",
            **modules,
        }
        return _Made(done=done, config=config, texts=_texts(facts))
    if way.action:
        facts = converted(way.action, request.source, target, request.inputs, environment, request.network)
        if form in (ModelForm.TORCHSCRIPT, ModelForm.PYTORCH) and facts["outputs"] is not None:
            given, outputs = torch_tensors(request.inputs, facts)
            rows = facts.get("rows", _BATCH_SIZE)
            assert isinstance(rows, int)
            config = msgspec.structs.replace(config, max_batch_size=rows, input=given, output=outputs)
        return _Made(done={f"1/{way.filename}": f"made of {request.source} by {facts['by']}"}, config=config, texts=_texts(facts))
    if request.source.is_dir():
        shutil.copytree(request.source, target)
    else:
        shutil.copy2(request.source, target)
    done = {f"1/{way.filename}": f"copied from {request.source}"}
    if form in (ModelForm.ONNX, ModelForm.OPENVINO):
        for data in files_beside(request.source):
            name = (
                data.name if form is ModelForm.ONNX else f"model{data.suffix}"
            )  # an ONNX file names its weights, OpenVINO does not
            shutil.copy2(data, target.parent / name)
            done[f"1/{name}"] = f"copied from {data}"
    return _Made(done=done, config=config)


def _with_modules(facts: dict[str, object], folder: Path) -> dict[str, str]:
    """Copy the modules of the author that the model needs; what was done for each."""
    modules = facts["modules"]
    assert isinstance(modules, list)
    done = {}
    for module in map(Path, modules):
        if module.is_dir():
            shutil.copytree(module, folder / module.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(module, folder / module.name)
        done[f"1/{module.name}"] = f"copied from {module}: the model needs it"
    return done


def _texts(facts: dict[str, object]) -> dict[str, str]:
    samples = facts.get("samples", {})
    assert isinstance(samples, dict)
    return samples


def _completed(config: ModelConfig, building: Path, source: Path, forms: Collection[ModelForm]) -> ModelConfig:
    """The configuration with inputs and outputs, where the backend can tell them from the model. Raises UsageError for a model
    that it cannot read; `forms` are the forms that its file can be made into."""
    if config.input:
        return config
    try:
        return completed_by_backend(config, building)
    except TpyError as error:
        other = "; --as python serves it as it is" if ModelForm.PYTHON in forms else ""
        if ModelForm.ONNX in forms:
            other = "; --as onnx converts it"
        text = error.message.splitlines()[0].replace(f"{building}/1/", "")  # the folder is gone with this error
        raise UsageError(f"{source}: the {config.backend} backend cannot read the model: {text}{other}") from error


def completed_by_backend(config: ModelConfig, folder: Path, version: int = 1) -> ModelConfig:
    """The configuration with the inputs and outputs that the backend finds in a version of a model folder. Raises TpyError."""
    registry = BackendRegistry(global_config={"default-max-batch-size": str(_BATCH_SIZE)})
    try:
        context = ModelContext(
            name=config.name,
            version=version,
            generation=1,
            config=config,
            model_directory=folder,
            version_directory=folder / str(version),
        )
        found = registry.get(config.backend).auto_complete(context)
    finally:
        registry.close()
    batches = found.max_batch_size > 0 and config.backend not in ("python", "pytorch")  # a program may take fewer rows
    return msgspec.structs.replace(found, max_batch_size=_BATCH_SIZE) if batches else found


def _summary(folder: Path, made: _Made, config: ModelConfig) -> list[str]:
    names = ", ".join(tensor.name for tensor in config.input) or "none yet"
    results = ", ".join(tensor.name for tensor in config.output) or "none yet"
    rows = {f"{folder}/{file}": done for file, done in made.done.items()}
    rows[f"{folder}/config.pbtxt"] = f"inputs: {names}; outputs: {results}"
    if config.input:
        rows[f"{folder}/request.json"] = "a test request"
    width = max(map(len, rows))
    return [f"{path:<{width}}  {done}" for path, done in rows.items()]


def _next_steps(folder: Path, config: ModelConfig, texts: dict[str, str]) -> list[str]:
    repository = folder.parent
    lines = []
    if not config.input:
        lines.append(f"next:   write the inputs and outputs into {folder}/config.pbtxt")
    lines.append(f"serve:  tpy serve {repository}")
    values = sample_values(config, texts)
    if values is not None:
        words = " ".join(f"'{name}={value if isinstance(value, str) else as_json(value)}'" for name, value in values.items())
        lines.append(f"ask:    tpy infer {config.name} {words}")
    elif config.input:
        lines.append(f"ask:    tpy infer {config.name} {folder}/request.json")
    return lines

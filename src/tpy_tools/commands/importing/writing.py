"""Makes the model folders of a plan: each in a temporary place beside it, so that nobody serves half of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tpy.archives import UnusableArchive, open_archive
from tpy.config import ModelConfig, format_pbtxt
from tpy.config.model_config import DynamicBatching, ModelParameter
from tpy.errors import TpyError, Unavailable
from tpy_tools.commands.importing.core.pipelines import with_tensors
from tpy_tools.commands.importing.core.plan import Export, ImportPlan, LinkTarget, ModelPlan, Part, Text, Unimportable, Unpack
from tpy_tools.commands.importing.tools import run_module
from tpy_tools.commands.init.create import completed_by_backend

_BATCH_SIZE: Final = 64
"""As `tpy init` writes it for models that take rows."""


def without_existing(plan: ImportPlan, repository: Path) -> ImportPlan:
    """The plan without models whose folders are there already: these are refused."""
    there = [model for model in plan.models if (repository / model.name).exists()]
    refused = [
        Part(model.name, f"{repository / model.name} is there already; remove it, or choose another --to") for model in there
    ]
    left = [model for model in plan.models if model not in there]
    return msgspec.structs.replace(plan, models=left, refused=[*plan.refused, *refused])


def perform(plan: ImportPlan, source: Path, repository: Path) -> ImportPlan:
    """Make the folders; the plan as it was done: models whose files a backend cannot read are refused."""
    repository.mkdir(parents=True, exist_ok=True)
    done: list[ModelPlan] = []
    refused = list(plan.refused)
    for model in plan.models:
        try:
            if model.config.ensemble_scheduling is not None:
                members = {each.name: each.config for each in done}
                model = msgspec.structs.replace(model, config=with_tensors(model.config, members))
            done.append(_made(model, source, repository))
        except Unimportable as error:
            refused.append(Part(model.name, str(error)))
    return msgspec.structs.replace(plan, models=done, refused=refused)


def _made(model: ModelPlan, source: Path, repository: Path) -> ModelPlan:
    with tempfile.TemporaryDirectory(prefix=".tpy-import-", dir=repository) as scratch:
        building = Path(scratch) / model.name
        building.mkdir()
        if model.config.ensemble_scheduling is not None:
            (building / "1").mkdir()  # the version, which has no files
        for file in model.files:
            target = building / file.target
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file, Text):
                target.write_text(file.text, encoding="utf-8")
            elif isinstance(file, LinkTarget):
                target.symlink_to(file.source)
            elif isinstance(file, Unpack):
                _unpack(file, target)
            elif isinstance(file, Export):
                run_module(
                    "optimum.exporters.onnx",
                    *("--model", file.source, "--task", file.task, str(target)),
                    failure="optimum cannot export it as ONNX",
                    environment={"HF_HUB_OFFLINE": "1"},
                )
            elif (source / file.source).is_dir():
                shutil.copytree(source / file.source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source / file.source, target)
        if model.completes:
            model = _completed(model, building)
        (building / "config.pbtxt").write_text(_config_text(model), encoding="utf-8")
        building.rename(repository / model.name)
    return model


def _unpack(file: Unpack, target: Path) -> None:
    try:
        with open_archive(Path(file.source)) as archive:
            archive.unpack(target, within=file.within)
    except UnusableArchive as error:
        raise Unimportable(f"{Path(file.source).name}: {error}") from None


def _completed(model: ModelPlan, building: Path) -> ModelPlan:
    """With what the backend finds in the files. Raises Unimportable where it cannot read them."""
    try:
        versions = [int(folder.name) for folder in building.iterdir() if folder.is_dir()]
        said = msgspec.structs.replace(model.config, name=model.name)
        found = completed_by_backend(said, building, max(versions))
        if model.shapes:
            found = completed_by_backend(_reshaped(said, found, model.shapes), building, max(versions))
    except Unavailable as error:
        shapes = "".join(f"; write dims {list(dims)} of {name or 'the input'}" for name, dims in model.shapes.items())
        step = f"here the {model.config.backend} backend cannot look at the model, so config.pbtxt has no inputs: {error}{shapes}"
        return msgspec.structs.replace(model, steps=[*model.steps, step])
    except TpyError as error:
        text = error.message.splitlines()[0].replace(f"{building}/", "")
        raise Unimportable(f"the {model.config.backend} backend cannot read it: {text}") from None
    if said.max_batch_size > 0:
        found = msgspec.structs.replace(found, max_batch_size=said.max_batch_size)
    batching = (said.dynamic_batching or DynamicBatching()) if found.max_batch_size > 0 else None
    return msgspec.structs.replace(model, config=msgspec.structs.replace(found, dynamic_batching=batching))


def _reshaped(said: ModelConfig, found: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """`said`, with the inputs that the backend found in these shapes, which have the rows in them. Raises Unimportable."""
    names = [each.name for each in found.input]
    if "" in shapes:
        if len(names) != 1:
            raise Unimportable(f"shape: one for all inputs, which are {', '.join(names)}: give them by name")
        shapes = {names[0]: shapes[""]}
    unknown = sorted(set(shapes) - set(names))
    if unknown:
        raise Unimportable(f"shape: the model has no input '{unknown[0]}', but {', '.join(names)}")
    rows = (-1,) if found.max_batch_size > 0 else ()
    inputs = [msgspec.structs.replace(each, dims=shapes.get(each.name, (*rows, *each.dims))) for each in found.input]
    batches = all(each.dims[0] == -1 and len(each.dims) > 1 for each in inputs)
    if batches:
        inputs = [msgspec.structs.replace(each, dims=each.dims[1:]) for each in inputs]
    parameters = {**said.parameters, "RESHAPE_IO_LAYERS": ModelParameter(string_value="YES")}
    size = (found.max_batch_size or _BATCH_SIZE) if batches else 0
    return msgspec.structs.replace(said, input=tuple(inputs), max_batch_size=size, parameters=parameters)


def _config_text(model: ModelPlan) -> str:
    """Without the name, so that the folder can be renamed."""
    config: ModelConfig = msgspec.structs.replace(model.config, name="")
    return f"{_comment(model.header)}{format_pbtxt(config)}{_comment(model.footer)}"


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.splitlines())

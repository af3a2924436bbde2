"""Makes the model folders of a plan: each in a temporary place beside it, so that nobody serves half of it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import msgspec

from tpy.archives import UnusableArchive, open_archive
from tpy.cli.importing.core.plan import Link, ModelPlan, Part, Plan, Text, Unimportable, Unpack
from tpy.cli.init.create import completed_by_backend
from tpy.config import ModelConfig, format_pbtxt
from tpy.config.model_config import DynamicBatching
from tpy.errors import TpyError, Unavailable


def without_existing(plan: Plan, repository: Path) -> Plan:
    """The plan without models whose folders are there already: these are refused."""
    there = [model for model in plan.models if (repository / model.name).exists()]
    refused = [
        Part(model.name, f"{repository / model.name} is there already; remove it, or choose another --to") for model in there
    ]
    left = [model for model in plan.models if model not in there]
    return msgspec.structs.replace(plan, models=left, refused=[*plan.refused, *refused])


def perform(plan: Plan, source: Path, repository: Path) -> Plan:
    """Make the folders; the plan as it was done: models whose files a backend cannot read are refused."""
    repository.mkdir(parents=True, exist_ok=True)
    done, refused = [], list(plan.refused)
    for model in plan.models:
        try:
            done.append(_made(model, source, repository))
        except Unimportable as error:
            refused.append(Part(model.name, str(error)))
    return msgspec.structs.replace(plan, models=done, refused=refused)


def _made(model: ModelPlan, source: Path, repository: Path) -> ModelPlan:
    with tempfile.TemporaryDirectory(prefix=".tpy-import-", dir=repository) as scratch:
        building = Path(scratch) / model.name
        for file in model.files:
            target = building / file.target
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file, Text):
                target.write_text(file.text, encoding="utf-8")
            elif isinstance(file, Link):
                target.symlink_to(file.source)
            elif isinstance(file, Unpack):
                _unpack(file, target)
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
        found = completed_by_backend(msgspec.structs.replace(model.config, name=model.name), building, max(versions))
    except Unavailable as error:
        step = f"here the {model.config.backend} backend cannot look at the model, so config.pbtxt has no inputs: {error}"
        return msgspec.structs.replace(model, steps=[*model.steps, step])
    except TpyError as error:
        text = error.message.splitlines()[0].replace(f"{building}/", "")
        raise Unimportable(f"the {model.config.backend} backend cannot read it: {text}") from None
    said = model.config
    if said.max_batch_size > 0:
        found = msgspec.structs.replace(found, max_batch_size=said.max_batch_size)
    batching = (said.dynamic_batching or DynamicBatching()) if found.max_batch_size > 0 else None
    return msgspec.structs.replace(model, config=msgspec.structs.replace(found, dynamic_batching=batching))


def _config_text(model: ModelPlan) -> str:
    """Without the name, so that the folder can be renamed."""
    config: ModelConfig = msgspec.structs.replace(model.config, name="")
    return f"{_comment(model.header)}{format_pbtxt(config)}{_comment(model.footer)}"


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.splitlines())

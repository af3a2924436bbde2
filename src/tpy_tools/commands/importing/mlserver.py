"""Reads what MLServer is started with: a folder with model-settings.json in it or below, and settings.json. No model is imported:
its text is parsed."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tpy.files import UnusableFile, read_file
from tpy.limits import MODEL_ARCHIVE_ENTRIES_MAX
from tpy_tools.commands.importing.core.mlserver import SETTINGS, MLServerPackage, ModelFolder, name_of, plan_mlserver, uri_of
from tpy_tools.commands.importing.core.mlserver_settings import parameter
from tpy_tools.commands.importing.core.plan import ImportPlan, Part, Unimportable
from tpy_tools.commands.importing.folders import DOCUMENT_BYTES_MAX, files_of, read_json
from tpy_tools.commands.importing.mlflow import is_mlflow_model, read_mlflow, tree_format

SERVER: Final = "settings.json"

_PACKAGE: Final = Path(__file__).with_name("mls")
_MODELS_MAX: Final = 1000
"""A folder with more is something else than a repository."""

_TREES: Final = (".bst", ".json", ".ubj", ".model", ".txt")


def is_mlserver_source(source: Path) -> bool:
    """Returns True for a model-settings.json, a settings.json, and a folder with models of MLServer."""
    if source.is_file():
        return source.name in (SETTINGS, SERVER)
    return (source / SETTINGS).is_file() or any(source.glob(f"*/{SETTINGS}")) or any(source.glob(f"*/*/{SETTINGS}"))


def plan_of_mlserver(source: Path, *, trust: bool) -> ImportPlan:
    """The plan. Raises Unimportable."""
    root = source.parent if source.is_file() else source
    server = root / SERVER
    said = _document(server, SERVER) if server.is_file() else {}
    places = [root] if source.name == SETTINGS else list(_places(root))
    if not places:
        raise Unimportable(f"there is no {SETTINGS} in {root}, nor below")
    found: list[ModelFolder] = []
    refused: list[Part] = []
    for place in places:
        name = str(place.relative_to(root)) if place != root else place.resolve().name
        try:
            found.append(_read(place, name, [each for each in places if each != place]))
        except Unimportable as error:
            refused.append(Part(name, str(error)))
    package = MLServerPackage(folder=str(_PACKAGE), modules=_known())
    return plan_mlserver(found, said, package, refused, trust=trust)


def _places(root: Path) -> Iterator[Path]:
    """Folders with settings of a model, at any depth, as MLServer finds them. Raises Unimportable."""
    count = entries = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        entries += len(folders) + len(names)
        if entries > MODEL_ARCHIVE_ENTRIES_MAX * _MODELS_MAX:
            raise Unimportable(f"{root} has too many files for a repository")
        if SETTINGS in names:
            count += 1
            if count > _MODELS_MAX:
                raise Unimportable(f"{root} has more than {_MODELS_MAX} models")
            yield Path(folder)


def _document(path: Path, name: str) -> Mapping[str, Any]:
    try:
        return read_json(read_file(path, bytes_max=DOCUMENT_BYTES_MAX), name)
    except UnusableFile as error:
        raise Unimportable(str(error)) from None


def _read(place: Path, name: str, others: Iterable[Path]) -> ModelFolder:
    """The facts of a folder. Raises Unimportable."""
    settings = _document(place / SETTINGS, SETTINGS)
    environment = _environment(place, parameter(settings, "environment_path"))
    files = files_of(place, leave_out={*others, *([environment] if environment else [])})
    folder = place.resolve()
    model = folder / uri_of(settings)
    modules = {path: _parsed(folder / path) for path in sorted(files) if path.endswith(".py")}
    found = ModelFolder(
        place=name,
        path=str(folder),
        settings=settings,
        files=files,
        imports={path: frozenset(_imported(tree)) for path, tree in modules.items()},
        streams=frozenset(each for path, tree in modules.items() for each in _streaming(path, tree)),
        trees={path: tree_format(folder / path) for path in files if path.endswith(_TREES)},
        mlflow=read_mlflow(model) if is_mlflow_model(model) else None,
        environment=str(environment.resolve()) if environment else "",
    )
    name_of(found)
    return found


def _environment(place: Path, said: str) -> Path | None:
    """The folder of an environment: there, or relative to the model."""
    return place / said if said and "\0" not in said and (place / said).is_dir() else None


def _parsed(path: Path) -> ast.Module:
    """The syntax of a Python file; an empty one of what is not Python, which the model's own Python will say."""
    try:
        return ast.parse(read_file(path, bytes_max=DOCUMENT_BYTES_MAX))
    except (UnusableFile, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def _imported(tree: ast.Module) -> Iterator[str]:
    """The modules of MLServer and its runtimes that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        else:
            continue
        yield from (each for each in names if each.partition(".")[0].partition("_")[0] == "mlserver")


def _streaming(path: str, tree: ast.Module) -> Iterator[str]:
    """The classes that have a predict_stream, by module and name."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(
            isinstance(each, ast.AsyncFunctionDef) and each.name == "predict_stream" for each in node.body
        ):
            yield f"{module}.{node.name}"


def _known() -> frozenset[str]:
    """The modules of our package."""
    paths = (each.relative_to(_PACKAGE).with_suffix("") for each in _PACKAGE.rglob("*.py"))
    return frozenset(".".join(("mlserver", *(part for part in each.parts if part != "__init__"))) for each in paths)

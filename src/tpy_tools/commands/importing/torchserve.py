"""Reads archives of TorchServe, a model store, or a config.properties. No handler is imported: its text is parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from tpy.archives import UnusableArchive, open_archive
from tpy.files import UnusableFile, read_file
from tpy_tools.commands.importing.core.plan import Copy, ImportPlan, Part, Unimportable, Unpack, text_of
from tpy_tools.commands.importing.core.torchserve import ArchivedModel, TorchServePackage, TorchServeProperties, plan_torchserve
from tpy_tools.commands.importing.folders import DOCUMENT_BYTES_MAX, files_of, read_json, read_yaml

MANIFESTS: Final = ("MAR-INF/MANIFEST.json", "WAR-INF/MANIFEST.json")
"""Of a model, and of a workflow."""

PROPERTIES: Final = "config.properties"

_ARCHIVES: Final = (".mar", ".tgz", ".tar.gz", ".war")
_PACKAGE: Final = Path(__file__).with_name("ts")
_PACKAGES: Final = ("ts.handler_utils", "ts.metrics", "ts.torch_handler", "ts.utils")
"""Names that are imported from these are modules."""

_IMPORT: Final = re.compile(
    r"^[ \t]*(?:from[ \t]+(ts(?:\.\w+)*)[ \t]+import[ \t]+([^#\n]+)|import[ \t]+(ts(?:\.\w+)*))", re.MULTILINE
)

_ARCHIVES_MAX: Final = 1000
"""A folder with more is something else than a model store."""


def is_torchserve_source(source: Path) -> bool:
    """Returns True for an archive, an archive's unpacked folder, a model store, and a config.properties or a folder with one."""
    if source.is_file():
        return source.name.endswith(_ARCHIVES) or source.name == PROPERTIES
    return _is_unpacked(source) or (source / PROPERTIES).is_file() or any(source.glob("*.mar"))


def _is_unpacked(folder: Path) -> bool:
    return any((folder / each).is_file() for each in MANIFESTS)


def plan_of_torchserve(source: Path, *, trust: bool) -> ImportPlan:
    """The plan. Raises Unimportable."""
    properties = source if source.name == PROPERTIES else source / PROPERTIES
    said: Mapping[str, str] = {}
    if _is_unpacked(source) or (source.is_file() and source != properties):
        sources = [source]
    else:
        said = _properties(properties) if properties.is_file() else {}
        sources = _sources(properties.parent, said)
    found: list[ArchivedModel] = []
    refused: list[Part] = []
    for each in sources:
        try:
            archive = _read(each)
            found.append(msgspec.structs.replace(archive, parts=_parts(archive, each, properties.parent, said)))
        except Unimportable as error:
            refused.append(Part(each.name, str(error)))
    package = TorchServePackage(folder=str(_PACKAGE), modules=_known())
    settings = read_json(said["models"].encode(), f"{PROPERTIES}: models") if "models" in said else {}
    return plan_torchserve(found, TorchServeProperties(properties=said, models=settings), package, refused, trust=trust)


def _sources(folder: Path, said: Mapping[str, str]) -> list[Path]:
    """The archives of a store, as TorchServe loads them: the ones that `load_models` names, or all. Raises Unimportable."""
    store = _store(folder, said.get("model_store", ""))
    names = said.get("load_models", "all")
    if names.lower() != "all":
        found = [store / PurePosixPath(each.rpartition("=")[2].strip()).name for each in names.split(",") if each.strip()]
        missing = [each.name for each in found if not each.exists()]
        if missing:
            raise Unimportable(f"load_models: there is no {', '.join(missing)} in {store}: fetch it first")
    else:
        found = sorted(each for each in store.iterdir() if each.name.endswith(_ARCHIVES) or _is_unpacked(each))
    found += [each for each in sorted(_store(folder, said.get("workflow_store", "")).glob("*.war")) if each not in found]
    if not found:
        raise Unimportable(f"{store} has no archives")
    if len(found) > _ARCHIVES_MAX:
        raise Unimportable(f"{store} has more than {_ARCHIVES_MAX} archives")
    return found


def _parts(archive: ArchivedModel, source: Path, folder: Path, said: Mapping[str, str]) -> dict[str, ArchivedModel]:
    """The archives that a workflow names, by name: of its folder, or of the model store. Raises Unimportable."""
    models = archive.config.get("models") if "workflow" in archive.manifest else None
    found: dict[str, ArchivedModel] = {}
    for model in list(models.values())[:_ARCHIVES_MAX] if isinstance(models, Mapping) else ():
        url = text_of(model.get("url")) if isinstance(model, Mapping) else ""
        name = PurePosixPath(url).name
        for place in (source.parent / name, _store(folder, said.get("model_store", "")) / name):
            if name and "\0" not in name and url not in found and place.exists():
                try:
                    found[url] = _read(place)
                except Unimportable as error:
                    raise Unimportable(f"{name}: {error}") from None
    return found


def _store(folder: Path, named: str) -> Path:
    """The model store that a configuration names: there, or, as it is often a container's, by its last name beside it."""
    if named and "\0" not in named:
        for store in (folder / named, folder / PurePosixPath(named).name):
            if store.is_dir():
                return store
    return folder


def _properties(path: Path) -> dict[str, str]:
    """A file of Java's properties. Raises Unimportable."""
    try:
        text = read_file(path, bytes_max=DOCUMENT_BYTES_MAX).decode("latin-1")
    except UnusableFile as error:
        raise Unimportable(str(error)) from None
    lines = re.sub(r"\\\r?\n[ \t]*", "", text).splitlines()
    pairs = (re.match(r"\s*([^\s#!=:][^\s=:]*)\s*[=:]?\s*(.*)", line) for line in lines)
    return {found[1]: found[2].strip() for found in pairs if found}


def _read(source: Path) -> ArchivedModel:
    """The facts of an archive or an unpacked one. Raises Unimportable."""
    if source.is_dir():
        folder = source.resolve()

        def read(path: str) -> bytes:
            try:
                return read_file(folder / path, bytes_max=DOCUMENT_BYTES_MAX)
            except UnusableFile as error:
                raise Unimportable(str(error)) from None

        return _facts(source.name, files_of(folder), read, Copy(str(folder), "archive"))
    try:
        with open_archive(source) as archive:
            within = _root(frozenset(archive.sizes))
            files = frozenset(each.removeprefix(within) for each in archive.sizes if each.startswith(within))
            contents = Unpack(str(source.resolve()), "archive", within)
            return _facts(source.name, files, lambda path: archive.read(within + path, bytes_max=DOCUMENT_BYTES_MAX), contents)
    except (UnusableArchive, UnusableFile) as error:
        raise Unimportable(str(error)) from None


def _root(files: frozenset[str]) -> str:
    """The folder in which an archive has its files: "", or in archives of tar the name of the model and "/"."""
    if not files.isdisjoint(MANIFESTS):
        return ""
    for each in sorted(files):
        folder, _, rest = each.partition("/")
        if rest in MANIFESTS:
            return f"{folder}/"
    raise Unimportable(f"it has no {MANIFESTS[0]}")


def _facts(name: str, files: frozenset[str], read: Callable[[str], bytes], contents: Copy | Unpack) -> ArchivedModel:
    path = next((each for each in MANIFESTS if each in files), MANIFESTS[0])
    manifest = read_json(read(path), path)
    config = ""
    for part, key in (("model", "configFile"), ("workflow", "specFile")):
        about = manifest.get(part)
        config = config or (text_of(about.get(key)) if isinstance(about, Mapping) else "")
    return ArchivedModel(
        archive=name,
        manifest=manifest,
        files=files,
        config=read_yaml(read(config), config) if config in files else {},
        imports={path: _imports(path, read) for path in sorted(files) if path.endswith(".py")},
        contents=contents,
    )


def _imports(path: str, read: Callable[[str], bytes]) -> frozenset[str]:
    try:
        return imported_of_ts(read(path).decode("utf-8", "replace"))
    except (UnusableArchive, Unimportable):  # larger than any handler
        return frozenset()


def imported_of_ts(text: str) -> frozenset[str]:
    """The modules of TorchServe's package that the text of a Python file imports."""
    found: set[str] = set()
    for module, names, whole in _IMPORT.findall(text):
        found.add(module or whole)
        if module in _PACKAGES:
            found.update(f"{module}.{each.split()[0]}" for each in names.strip("() ").split(",") if each.split())
    return frozenset(found)


def _known() -> frozenset[str]:
    """The modules of our package."""
    paths = (each.relative_to(_PACKAGE).with_suffix("") for each in _PACKAGE.rglob("*.py"))
    return frozenset(".".join(("ts", *(part for part in each.parts if part != "__init__"))) for each in paths)

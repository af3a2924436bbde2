"""Reads a config.json of OpenVINO Model Server, and names of files at its base paths. No model is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tpy.files import UnusableFile, read_file
from tpy_tools.commands.importing.core.openvino_server import ServedNetwork, is_config, plan_openvino_server, settings_of
from tpy_tools.commands.importing.core.plan import ImportPlan, Unimportable, text_of
from tpy_tools.commands.importing.folders import DOCUMENT_BYTES_MAX, read_json
from tpy_tools.commands.importing.tensorflow_serving import base_path_of

CONFIG: Final = "config.json"


def is_openvino_server_source(source: Path) -> bool:
    """Returns True for a configuration of OpenVINO Model Server, and a folder with one."""
    path = _config(source)
    if not path.is_file() or path.suffix != ".json":
        return False
    try:
        return is_config(_document(path))
    except Unimportable:
        return False


def plan_of_openvino_server(source: Path) -> ImportPlan:
    """The plan. Raises Unimportable."""
    path = _config(source)
    document = _document(path)
    networks = [
        ServedNetwork(settings=each, base=base_path_of(text_of(each.get("base_path")), path.parent))
        for each in settings_of(document)
    ]
    return plan_openvino_server(document, networks)


def _config(source: Path) -> Path:
    return source if source.is_file() else source / CONFIG


def _document(path: Path) -> Mapping[str, Any]:
    try:
        return read_json(read_file(path, bytes_max=DOCUMENT_BYTES_MAX), path.name)
    except UnusableFile as error:
        raise Unimportable(str(error)) from None

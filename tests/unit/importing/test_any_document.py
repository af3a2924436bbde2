"""Settings of any form become a plan or are refused: nothing else comes out, and what is planned is a configuration that can be
written. Documents are good ones with parts replaced."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tpy.config import format_pbtxt, parse_pbtxt
from tpy_tools.commands.importing.core.mlserver import MLServerPackage, ModelFolder, plan_mlserver
from tpy_tools.commands.importing.core.openvino_server import ServedNetwork, plan_openvino_server, settings_of
from tpy_tools.commands.importing.core.plan import Copy, ImportPlan, Unimportable
from tpy_tools.commands.importing.core.report import as_json_text, as_text
from tpy_tools.commands.importing.core.tensorflow_serving import BasePath

ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 20)
    | st.floats()
    | st.sampled_from(["", "x", "m", "auto", "\x1b", "../x", "/x", "1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "x", ""]), inner, max_size=2),
    max_leaves=4,
)
PLACE = PurePath("to")

TENSOR = {"name": "x", "datatype": "FP32", "shape": [-1, 2], "parameters": {"content_type": "np"}}
MLSERVER = {
    "settings": [
        {
            "name": name,
            "implementation": implementation,
            "platform": "p",
            "inputs": [TENSOR],
            "outputs": [TENSOR],
            "max_batch_size": 4,
            "max_batch_time": 0.5,
            "cache_enabled": True,
            "parameters": {"uri": "model.bst", "version": "v1", "content_type": "np", "extra": {"predict_fn": "predict"}, **more},
        }
        for name, implementation, more in (
            ("a", "m.C", {"environment_tarball": "m.py"}),
            ("b", "mlserver_sklearn.SKLearnModel", {"uri": "model.joblib"}),
            ("c", "mlserver_xgboost.XGBoostModel", {}),
            ("c", "mlserver_xgboost.XGBoostModel", {"version": "v2"}),
        )
    ],
    "server": {"parallel_workers": 2, "cache_enabled": True, "cache_size": 5, "host": "a"},
}


def node(name: str, source: str, item: str) -> dict[str, Any]:
    return {
        "name": name,
        "model_name": "m",
        "type": "DL model",
        "version": 1,
        "inputs": [{"x": {"node_name": source, "data_item": item}}],
        "outputs": [{"data_item": "y", "alias": "o"}],
    }


OPENVINO = {
    "model_config_list": [
        {
            "config": {
                "name": "m",
                "base_path": "b",
                "shape": {"x": "(1,3)"},
                "batch_size": 4,
                "layout": {"x": "NC"},
                "model_version_policy": {"specific": {"versions": [1]}},
                "plugin_config": {"NUM_STREAMS": 1},
                "nireq": 2,
                "target_device": "CPU",
                "stateful": False,
            }
        }
    ],
    "pipeline_config_list": [
        {
            "name": "p",
            "inputs": ["in"],
            "nodes": [node("n", "request", "in"), node("l", "n", "o")],
            "outputs": [{"out": {"node_name": "l", "data_item": "o"}}],
        }
    ],
    "mediapipe_config_list": [{"name": "g"}],
    "monitoring": {},
}


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all parts of a document."""
    inner = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


@st.composite
def changed(draw: st.DrawFn, good: dict[str, Any]) -> dict[str, Any]:
    """The document, with up to two parts replaced."""
    document = copy.deepcopy(good)
    for _ in range(draw(st.integers(0, 2))):
        *path, last = draw(st.sampled_from(list(places(document))))
        part = document
        for key in path:
            part = part[key]
        part[last] = draw(ANY)
    return document


def check(plan: ImportPlan) -> None:
    for model in plan.models:
        text = format_pbtxt(model.config)
        assert format_pbtxt(parse_pbtxt(text).config) == text
        for file in model.files:
            assert not file.target.startswith("/")
            assert not isinstance(file, Copy) or file.source.startswith(("/p", "/package"))
            assert ".." not in file.target.split("/")
    for dry_run in (True, False):
        assert as_text(plan, PLACE, dry_run=dry_run).replace("\n", "").isprintable()
    assert as_json_text(plan, PLACE)


def is_unchanged(document: dict[str, Any], original: dict[str, Any]) -> bool:
    """As texts: to Python, `true` in the place of 1 is the same."""
    return json.dumps(document) == json.dumps(original)


@settings(max_examples=60)
@given(changed(MLSERVER), st.booleans())
def test_mlserver(document: dict[str, Any], trust: bool) -> None:
    files = frozenset({"m.py", "model.bst", "model.joblib", "model-settings.json"})
    said, server = document["settings"], document["server"]
    folders = [
        ModelFolder(place=f"p{at}", path=f"/p{at}", settings=each, files=files, trees={"model.bst": "xgboost-json"})
        for at, each in enumerate(said if isinstance(said, list) else [])
        if isinstance(each, dict)  # as the reader makes sure
    ]
    plan = plan_mlserver(
        folders, server if isinstance(server, dict) else {}, MLServerPackage(folder="/package", modules=frozenset()), trust=trust
    )
    check(plan)
    if is_unchanged(document, MLSERVER) and trust:
        assert ([each.name for each in plan.models], plan.refused) == (["a", "b", "c"], [])


@settings(max_examples=60)
@given(changed(OPENVINO))
def test_openvino_model_server(document: dict[str, Any]) -> None:
    base = BasePath(folder="/b", versions={"1": frozenset({"a.xml", "a.bin"}), "0": frozenset()})
    try:
        networks = [ServedNetwork(settings=each, base=base) for each in settings_of(document)]
        plan = plan_openvino_server(document, networks)
    except Unimportable:
        assert not is_unchanged(document, OPENVINO)
        return
    check(plan)
    if is_unchanged(document, OPENVINO):
        assert [each.name for each in plan.models] == ["m", "p"]

"""A public class has a name that no other module of the product has: what a reader looks up leads to one place."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHARED: dict[str, tuple[str, ...]] = {
    "names of Triton's: the enums, the Python backend's module and the in-process API have them, and so have our messages": (
        "DataType",
        "ErrorCode",
        "InferenceRequest",
        "InferenceResponse",
        "MemoryType",
        "Metric",
        "MetricFamily",
        "MetricKind",
        "Model",
        "ModelConfig",
        "ResponseIterator",
        "Server",
        "Tensor",
        "TritonError",
        "TritonPythonModel",
    ),
    "messages of model_config.proto, and what serves them": (
        "ModelMetrics",
        "RateLimiter",
        "RateLimiterResource",
        "RepositoryAgent",
        "ResponseCache",
        "SequenceState",
    ),
    "names of MLServer's, for models that import its package": ("Histogram",),
    "questions to a service and events of it, named as what the service has": (
        "Caller",
        "Graph",
        "Kind",
        "PendingRequest",
        "RecordingState",
        "Refused",
        "Replica",
        "Response",
        "ServerLoad",
        "SocketWire",
        "Stop",
        "TraceSettings",
        "Wire",
    ),
    "actions that a core decides on, each in its own module": ("Load", "Refuse", "Trace", "Unload", "Unregister"),
    "the states and ends of different cores": ("Demand", "Gate", "Outcome", "Phase", "PortOptions", "Running", "Tenancy"),
}
"""Names that several modules have, by the reason. Take those away that one module has alone."""


def test_a_public_class_has_a_name_that_no_other_module_has() -> None:
    modules = defaultdict[str, set[str]](set)
    for part in ("src", "control", "data"):
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    modules[node.name].add(str(path.relative_to(ROOT)))
    shared = {name: sorted(found) for name, found in modules.items() if len(found) > 1}
    known = {name for names in SHARED.values() for name in names}
    assert {name: found for name, found in shared.items() if name not in known} == {}, "give the new one another name"
    assert known <= shared.keys(), "these are not shared any more"

"""Workflows of TorchServe that are chains: models of a workflow's archives and functions, and an ensemble of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tpy.config import ModelConfig
from tpy.config.model_config import EnsembleScheduling, EnsembleStep, ModelInput, ModelOutput
from tpy_tools.commands.importing.core.plan import ModelPlan, Part, Unimportable, require_inside, require_name, text_of

_OUTPUTS: Final = ("response", "status", "response_headers")
_NODES_MAX: Final = 100
_SETTINGS: Final = {
    "min-workers": "minWorkers",
    "max-workers": "maxWorkers",
    "batch-size": "batchSize",
    "max-batch-delay": "maxBatchDelay",
    "retry-attempts": "retryAttempts",
    "timeout-ms": "responseTimeout",
}
"""Settings of a workflow, with their names in `config.properties`."""


_INSTEAD: Final = "write a Python model that calls the others, or an ensemble"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a chain: the archive of a model, by the name of its file, or "" for a function of the workflow's handler."""

    name: str
    archive: str
    settings: Mapping[str, Any]


class Workflow(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow, as its archive's manifest and specification have it; `nodes` are in the order of the chain."""

    name: str
    handler: str
    nodes: Sequence[Node]


def read_workflow(manifest: Mapping[str, Any], specification: Mapping[str, Any], files: frozenset[str]) -> Workflow:
    """Raises Unimportable, also for workflows other than chains."""
    said = manifest.get("workflow")
    if not isinstance(said, Mapping):
        raise Unimportable("MAR-INF/MANIFEST.json: workflow: expected names and values")
    name = require_name(text_of(said.get("workflowName")))
    handler = text_of(said.get("handler"))
    models, dag = specification.get("models"), specification.get("dag")
    if not isinstance(models, Mapping) or not isinstance(dag, Mapping):
        raise Unimportable(f"{text_of(said.get('specFile'))}: expected models and dag")
    chain = _chain(dag)
    unused = [text_of(each) for each, value in models.items() if isinstance(value, Mapping) and each not in chain]
    if unused:
        raise Unimportable(f"models: '{unused[0]}' is not in dag")
    nodes = [_node(each, models) for each in chain]
    if any(not node.archive for node in nodes) and require_inside(handler, "handler") not in files:
        raise Unimportable(f"handler: there is no file '{handler}', which has the functions of the workflow")
    return Workflow(name=name, handler=handler, nodes=nodes)


def ensemble_of(workflow: Workflow, archive: str, model_of: Callable[[str], str]) -> ModelPlan:
    """The ensemble; `model_of` gives the name of a node's model. Its tensors' types are known once these are made."""
    last = workflow.nodes[-1]
    steps: list[EnsembleStep] = []
    body = "body"
    for node in workflow.nodes:
        inputs = {"body": body} if steps else {"body": body, "headers": "headers"}
        body = f"{node.name}.response"
        outputs = {name: name for name in _OUTPUTS} if node is last else {"response": body}
        steps.append(EnsembleStep(model_name=model_of(node.name), model_version=-1, input_map=inputs, output_map=outputs))
    return ModelPlan(
        name=workflow.name,
        config=ModelConfig(
            platform="ensemble",
            input=(ModelInput(name="body"), ModelInput(name="headers")),
            output=tuple(ModelOutput(name=name) for name in _OUTPUTS),
            ensemble_scheduling=EnsembleScheduling(step=tuple(steps)),
        ),
        files=[],
        carried=[Part(f"node {node.name}", f"a step of {model_of(node.name)}") for node in workflow.nodes],
        header=f"Imported from TorchServe: the workflow of {archive}.",
    )


def _chain(dag: Mapping[Any, Any]) -> list[str]:
    """The nodes of a graph, in their order. Raises Unimportable for any other graph."""
    following: dict[str, str] = {}
    for name, targets in dag.items():
        if isinstance(targets, str):
            targets = [targets]
        if not isinstance(name, str) or not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
            raise Unimportable("dag: expected names, each with the list of the nodes that follow it")
        if len(targets) > 1:
            raise Unimportable(f"dag: '{name}' leads to {', '.join(targets)}: only chains are imported; {_INSTEAD}")
        if targets:
            following[name] = targets[0]
    joins = [each for each in following.values() if list(following.values()).count(each) > 1][:1]
    if joins:
        raise Unimportable(f"dag: '{joins[0]}' follows several nodes: only chains are imported; {_INSTEAD}")
    if len(following) >= _NODES_MAX:
        raise Unimportable(f"dag: expected at most {_NODES_MAX} nodes")
    starts = [each for each in following if each not in following.values()]
    if len(starts) != 1:
        raise Unimportable(f"dag: expected a chain with one begin, got {', '.join(starts) or 'none'}; {_INSTEAD}")
    chain = [starts[0]]
    while chain[-1] in following:
        chain.append(following[chain[-1]])
    rest = [each for each in following if each not in chain]
    if rest:
        raise Unimportable(f"dag: {' and '.join(map(repr, rest))} lead to each other; {_INSTEAD}")
    return chain


def _node(name: str, models: Mapping[Any, Any]) -> Node:
    require_name(name)
    own = models.get(name)
    if own is None:
        return Node(name=name, archive="", settings={})
    url = text_of(own.get("url")) if isinstance(own, Mapping) else ""
    if not url:
        raise Unimportable(f"models: '{name}': expected the url of its archive")
    if "://" in url:
        raise Unimportable(f"models: '{name}': {url} is an address: fetch it, put it beside the workflow, and name the file")
    said = {key: value for key, value in models.items() if not isinstance(value, Mapping)} | dict(own)
    settings = {_SETTINGS.get(key, text_of(key)): value for key, value in said.items() if key != "url"}
    timeout_ms = settings.get("responseTimeout")
    if type(timeout_ms) is int:
        settings["responseTimeout"] = -(-timeout_ms // 1000)
    return Node(name=name, archive=require_inside(url, f"models: '{name}': url"), settings=settings)

"""Pipelines of OpenVINO Model Server as ensembles."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Final

import msgspec

from tpy.config import ModelConfig
from tpy.config.model_config import EnsembleScheduling, EnsembleStep, ModelInput, ModelOutput
from tpy_tools.commands.importing.core.plan import ModelPlan, Part, Unimportable, require_name, text_of

_REQUEST: Final = "request"
_NODES_MAX: Final = 1000


def ensemble_of(pipeline: object, models: Set[str]) -> ModelPlan:
    """The plan of a pipeline over these models; its tensors are known once they are made. Raises Unimportable."""
    if not isinstance(pipeline, Mapping):
        raise Unimportable("pipeline_config_list: expected objects")
    name = require_name(text_of(pipeline.get("name")))
    if name in models:
        raise Unimportable("a model has this name, too")
    if pipeline.get("demultiply_count") is not None:
        raise Unimportable("demultiply_count: an ensemble does not split requests; write a Python model that calls the others")
    inputs = pipeline.get("inputs")
    nodes = pipeline.get("nodes")
    outputs = pipeline.get("outputs")
    if not isinstance(inputs, list) or not isinstance(nodes, list) or not isinstance(outputs, list) or len(nodes) > _NODES_MAX:
        raise Unimportable("expected lists: inputs, nodes, outputs")
    named = {text_of(each.get("name")): each for each in nodes if isinstance(each, Mapping)}
    if len(named) != len(nodes) or "" in named or _REQUEST in named:
        raise Unimportable("nodes: expected nodes of different names")
    # Tensors of an ensemble have one name each: the ones that clients see keep theirs.
    tensors: dict[tuple[str, str], str] = {(_REQUEST, text_of(each)): text_of(each) for each in inputs}
    for label, source in _sources(outputs, "outputs"):
        if source in tensors:
            raise Unimportable(f"outputs: '{label}' is the same tensor as '{tensors[source]}', which an ensemble has once")
        tensors[source] = label
    if len(set(tensors.values())) != len(tensors) or "" in tensors.values():
        raise Unimportable("inputs and outputs: expected different names")
    steps = tuple(_step(text, node, named, tensors, models) for text, node in named.items())
    made = {value for step in steps for value in step.output_map.values()}
    missing = sorted(text for source, text in tensors.items() if source[0] != _REQUEST and text not in made)
    if missing:
        raise Unimportable(f"no node makes '{missing[0]}'")
    config = ModelConfig(
        platform="ensemble",
        input=tuple(ModelInput(name=text_of(each)) for each in inputs),
        output=tuple(ModelOutput(name=label) for label, _ in _sources(outputs, "outputs")),
        ensemble_scheduling=EnsembleScheduling(step=steps),
    )
    carried = [Part(f"node {text}", f"a step of {step.model_name}") for text, step in zip(named, steps, strict=True)]
    return ModelPlan(
        name=name, config=config, files=[], carried=carried, header="Imported from OpenVINO Model Server: a pipeline."
    )


def _sources(values: object, place: str) -> list[tuple[str, tuple[str, str]]]:
    """Names with the node and the tensor that they come from."""
    if not isinstance(values, list):
        raise Unimportable(f"{place}: expected a list")
    found = []
    for value in values:
        if not isinstance(value, Mapping) or len(value) != 1:
            raise Unimportable(f"{place}: expected objects of one name each")
        [(name, source)] = value.items()
        node, item = (text_of(source.get(each)) if isinstance(source, Mapping) else "" for each in ("node_name", "data_item"))
        if not node or not item or not text_of(name):
            raise Unimportable(f"{place}: '{name}': expected node_name and data_item")
        found.append((name, (node, item)))
    return found


def _step(
    text: str,
    node: Mapping[str, Any],
    nodes: Mapping[str, Any],
    tensors: dict[tuple[str, str], str],
    models: Set[str],
) -> EnsembleStep:
    model = text_of(node.get("model_name"))
    if node.get("type") != "DL model":
        raise Unimportable(f"node '{text}': type '{text_of(node.get('type'))}': write a Python model for it, and an ensemble")
    for key in ("demultiply_count", "gather_from_node"):
        if node.get(key) is not None:
            raise Unimportable(f"node '{text}': {key}: an ensemble does not split requests")
    if model not in models:
        raise Unimportable(f"node '{text}': the model '{model}' is not imported")
    version = node.get("version", -1)
    if type(version) is not int or version < -1:
        raise Unimportable(f"node '{text}': version: expected a number")
    inputs = {}
    for name, source in _sources(node.get("inputs"), f"node '{text}': inputs"):
        if source[0] != _REQUEST and source[0] not in nodes:
            raise Unimportable(f"node '{text}': there is no node '{source[0]}'")
        if source[0] == _REQUEST and source not in tensors:
            raise Unimportable(f"node '{text}': the pipeline has no input '{source[1]}'")
        inputs[name] = _tensor(source, tensors)
    outputs = {}
    made = node.get("outputs")
    for each in made if isinstance(made, list) else [None]:
        item, alias = (text_of(each.get(key)) if isinstance(each, Mapping) else "" for key in ("data_item", "alias"))
        if not item or not alias:
            raise Unimportable(f"node '{text}': outputs: expected objects with data_item and alias")
        outputs[item] = _tensor((text, alias), tensors)
    return EnsembleStep(model_name=model, model_version=version, input_map=inputs, output_map=outputs)


def _tensor(source: tuple[str, str], tensors: dict[tuple[str, str], str]) -> str:
    """The name of a tensor in the ensemble; a new one for a tensor between nodes."""
    if source not in tensors:
        name, at = f"{source[0]}.{source[1]}", 2
        while name in tensors.values():
            name, at = f"{source[0]}.{source[1]}.{at}", at + 1
        tensors[source] = name
    return tensors[source]


def with_tensors(config: ModelConfig, members: Mapping[str, ModelConfig]) -> ModelConfig:
    """The configuration of an ensemble with types and sizes of its inputs and outputs, as its members have them. Raises
    Unimportable where they do not say."""
    assert config.ensemble_scheduling is not None
    steps = config.ensemble_scheduling.step
    rows = [members[step.model_name].max_batch_size for step in steps if step.model_name in members]
    most = min(rows, default=0)
    inputs: dict[str, ModelInput] = {}
    outputs: dict[str, ModelOutput] = {}
    for step in steps:
        member = members.get(step.model_name)
        if member is None:
            raise Unimportable(f"its model '{step.model_name}' is not imported")
        if not member.input:
            raise Unimportable(f"inputs of '{step.model_name}' are not known here: install its backend, and import again")
        opened = (-1,) if most == 0 < member.max_batch_size else ()
        for given in member.input:
            if given.name in step.input_map:
                inputs.setdefault(step.input_map[given.name], msgspec.structs.replace(given, dims=(*opened, *given.dims)))
        for made in member.output:
            if made.name in step.output_map:
                outputs[step.output_map[made.name]] = msgspec.structs.replace(made, dims=(*opened, *made.dims))
    missing = [each.name for each in config.input if each.name not in inputs]
    missing += [each.name for each in config.output if each.name not in outputs]
    if missing:
        raise Unimportable(f"no model of the pipeline has the tensor for '{missing[0]}'")
    return msgspec.structs.replace(
        config,
        max_batch_size=most,
        input=tuple(
            ModelInput(name=each.name, data_type=inputs[each.name].data_type, dims=inputs[each.name].dims)
            for each in config.input
        ),
        output=tuple(
            ModelOutput(name=each.name, data_type=outputs[each.name].data_type, dims=outputs[each.name].dims)
            for each in config.output
        ),
    )

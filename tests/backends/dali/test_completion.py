"""Configurations filled in from what a pipeline says, and checked against it. Needs no DALI."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.hosted import inputs, outputs, parameters
from tpy.config import ModelConfig
from tpy.config.model_config import DynamicBatching, ModelInput, ModelOutput, TensorReshape
from tpy.errors import InvalidArgument
from tpy.messages import DataType
from tpy_backends.dali.completion import complete, validate
from tpy_backends.dali.description import PipelineDescription, PipelineTensor
from tpy_backends.dali.settings import backend_config, model_settings

PIPELINE = PipelineDescription(
    inputs=(
        PipelineTensor(name="a", datatype=DataType.FP16, dimensions=1),
        PipelineTensor(name="b", datatype=DataType.FP16, dimensions=1),
    ),
    outputs=(
        PipelineTensor(name="first", datatype=DataType.FP16, dimensions=1),
        PipelineTensor(name="second", datatype=DataType.FP32, dimensions=0),
    ),
    max_batch_size=256,
)
SILENT = PipelineDescription(inputs=(PipelineTensor(name="a"),), outputs=(PipelineTensor(name="o"),), max_batch_size=2)


def config(**fields: Any) -> ModelConfig:
    return ModelConfig(name="m", backend="dali", **fields)


def test_everything_is_filled_in() -> None:
    made = complete(config(), PIPELINE, batches=True)
    assert made.max_batch_size == 256
    assert made.dynamic_batching == DynamicBatching()
    assert made.input == (
        ModelInput(name="a", data_type=DataType.FP16, dims=(-1,), allow_ragged_batch=True),
        ModelInput(name="b", data_type=DataType.FP16, dims=(-1,), allow_ragged_batch=True),
    )
    assert made.output == (
        ModelOutput(name="first", data_type=DataType.FP16, dims=(-1,)),
        ModelOutput(name="second", data_type=DataType.FP32, dims=(1,), reshape=TensorReshape(shape=())),
    )
    validate(made, PIPELINE)


def test_what_is_there_stays_and_what_it_lacks_is_filled_in() -> None:
    given = config(
        max_batch_size=32,
        input=(ModelInput(name="b", data_type=DataType.FP16),),
        output=(ModelOutput(name="mine"), ModelOutput(dims=(1,), reshape=TensorReshape(shape=()))),
        dynamic_batching=DynamicBatching(preferred_batch_size=(16, 32)),
    )
    made = complete(given, PIPELINE, batches=True)
    assert made.max_batch_size == 32
    assert made.dynamic_batching == given.dynamic_batching
    assert [(each.name, each.dims, each.allow_ragged_batch) for each in made.input] == [("b", (-1,), False), ("a", (-1,), True)]
    assert [(each.name, each.data_type, each.dims) for each in made.output] == [
        ("mine", DataType.FP16, (-1,)),
        ("second", DataType.FP32, (1,)),
    ]
    validate(made, PIPELINE)


def test_without_batches_the_first_dimension_is_the_pipelines_batch() -> None:
    made = complete(config(), PIPELINE, batches=False)
    assert made.max_batch_size == 0
    assert made.dynamic_batching is None
    assert [(each.dims, each.allow_ragged_batch) for each in made.input] == [((-1, -1), False)] * 2
    assert [each.dims for each in made.output] == [(-1, -1), (-1,)]
    validate(made, PIPELINE)


def test_a_pipeline_that_says_nothing_leaves_it_to_the_configuration() -> None:
    made = complete(config(), SILENT, batches=True)
    with pytest.raises(InvalidArgument, match=r'^Missing data_type config for "a"$'):
        validate(made, SILENT)
    validate(
        config(max_batch_size=2, input=inputs(("a", DataType.UINT8, (-1,))), output=outputs(("o", DataType.UINT8, (3, 4)))),
        SILENT,
    )


FITTING: dict[str, Any] = {
    "max_batch_size": 8,
    "input": inputs(("a", DataType.FP16, (-1,)), ("b", DataType.FP16, (-1,))),
    "output": (
        ModelOutput(name="x", data_type=DataType.FP16, dims=(5,)),
        ModelOutput(name="y", data_type=DataType.FP32, dims=(1,), reshape=TensorReshape(shape=())),
    ),
}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"input": inputs(("a", DataType.FP32, (-1,)), ("b", DataType.FP16, (-1,)))},
            (
                'Mismatch of data_type config for "a".\nData type defined in config: TYPE_FP32\n'
                "Data type defined in pipeline: TYPE_FP16"
            ),
        ),
        (
            {"input": inputs(("a", DataType.FP16, (-1, 2)), ("b", DataType.FP16, (-1,)))},
            (
                'Mismatch in number of dimensions for "a"\nNumber of dimensions defined in config: 2\n'
                "Number of dimensions defined in pipeline: 1"
            ),
        ),
        ({"input": inputs(("a", DataType.FP16, (-1,)))}, 'Missing config for "b" input.'),
        ({"input": inputs(("a", DataType.FP16, ()), ("b", DataType.FP16, (-1,)))}, 'Missing dims config for "a"'),
        (
            {"input": inputs(("a", DataType.FP16, (-1,)), ("b", DataType.FP16, (-1,)), ("c", DataType.FP16, (-1,)))},
            "Configuration file contains config for c but such input is not present in the pipeline. Its inputs are: a, b.",
        ),
        (
            {"output": outputs(("x", DataType.FP16, (5,)))},
            (
                "The number of outputs specified in the DALI pipeline and the configuration file do not match.\n"
                "Model config outputs: 1\nPipeline outputs: 2"
            ),
        ),
        (
            {"input": inputs(("a", DataType.BYTES, (1,)), ("b", DataType.FP16, (-1,)))},
            (
                "input 'a' of TYPE_STRING needs dims: [ 1 ], and a pipeline whose input is of UINT8 and has one dimension: each "
                "string is a sample"
            ),
        ),
    ],
)
def test_texts_of_what_does_not_fit(changes: dict[str, Any], text: str) -> None:
    validate(config(**FITTING), PIPELINE)
    with pytest.raises(InvalidArgument) as caught:
        validate(config(**{**FITTING, **changes}), PIPELINE)
    assert str(caught.value) == text


def test_more_outputs_than_the_pipeline_has() -> None:
    with pytest.raises(InvalidArgument, match=r"Model config outputs: 2\nPipeline outputs: 1"):
        complete(config(output=outputs(("x", DataType.FP16, (1,)), ("y", DataType.FP16, (1,)))), SILENT, batches=True)


def test_strings_are_samples() -> None:
    strings = config(max_batch_size=2, input=inputs(("a", DataType.BYTES, (1,))), output=outputs(("o", DataType.UINT8, (3,))))
    validate(strings, SILENT)
    assert complete(strings, SILENT, batches=True).input == strings.input


def test_a_pipeline_without_inputs() -> None:
    alone = PipelineDescription(inputs=(), outputs=SILENT.outputs, max_batch_size=1)
    with pytest.raises(InvalidArgument, match=r"the pipeline of model 'm' has no inputs: requests come in by fn.external_source"):
        validate(config(output=outputs(("o", DataType.UINT8, (3,)))), alone)


def test_settings() -> None:
    found = model_settings(config(parameters=parameters(num_threads="4", split_along_outer_axis="a::b")))
    assert (found.threads, found.split) == (4, frozenset({"a", "b"}))
    assert model_settings(config(parameters=parameters(num_threads="-1"))).threads is None
    for wrong in ("0", "four", "1025", "4294967297"):
        with pytest.raises(InvalidArgument, match=f"{wrong}"):
            model_settings(config(parameters=parameters(num_threads=wrong)))
    assert backend_config({"plugin_libs": "/a.so:/b.so", "release_after_unload": "TRUE"}).plugin_libraries == ("/a.so", "/b.so")
    assert not backend_config({"release_after_unload": "1"}).release_after_unload

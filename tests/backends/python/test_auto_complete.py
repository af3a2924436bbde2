"""auto_complete_config: what it may fill in, and what it is told when it contradicts the configuration."""

from __future__ import annotations

import re

import pytest

from tests.backends.python.conftest import Serve
from tpy.config.json_form import to_json
from tpy.config.model_config import InstanceGroup, InstanceKind, ModelInput, ModelOutput, SequenceBatching
from tpy.errors import Internal, InvalidArgument
from tpy.messages import DataType
from tpy_data.backends.python.backend import merge
from tpy_data.backends.python.worker.pb_utils.auto_complete import ModelConfig as Completion

FULL = """
        c.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
        c.add_output({"name": "OUT", "data_type": "TYPE_STRING", "dims": [-1, 2]})
        c.set_max_batch_size(4)
        c.set_dynamic_batching()
        c.set_model_transaction_policy({"decoupled": False})
"""


def _code(body: str, returned: str = "c") -> str:
    return f"""
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(c):
{body}
        return {returned}
"""


def test_an_empty_configuration_is_filled(make: Serve) -> None:
    served = make(_code(FULL), input=(), output=())
    completed = served.backend.auto_complete(served.context)
    assert completed.input == (ModelInput(name="IN", data_type=DataType.FP32, dims=(4,), optional=True),)
    assert completed.output == (ModelOutput(name="OUT", data_type=DataType.BYTES, dims=(-1, 2)),)
    assert completed.max_batch_size == 4
    assert completed.dynamic_batching is not None
    assert completed.model_transaction_policy is not None
    assert not completed.decoupled
    assert completed.parameters == served.context.config.parameters


def test_without_the_function_the_configuration_stays(make: Serve) -> None:
    served = make("class TritonPythonModel:\n    pass\n")
    assert served.backend.auto_complete(served.context) is served.context.config


def test_a_model_served_in_a_thread_completes_in_a_process_too(make: Serve) -> None:
    served = make(_code("        os._exit(0)"), "thread")
    with pytest.raises(Internal, match=r"^Stub process 'm' is not healthy\. It exited with status 0 while loading the model$"):
        served.backend.auto_complete(served.context)


def test_only_what_the_setters_could_change_counts(make: Serve) -> None:
    served = make(
        _code(
            """
        c.as_dict()["max_batch_size"] = 16
        c.as_dict()["instance_group"] = [{"count": 3}]
        c.as_dict()["parameters"] = {"x": {"string_value": "1"}}
"""
        ),
        instance_group=(InstanceGroup(name="g", kind=InstanceKind.KIND_CPU, count=1),),
    )
    completed = served.backend.auto_complete(served.context)
    assert completed.max_batch_size == 16
    assert completed.instance_group == served.context.config.instance_group
    assert not completed.parameters


@pytest.mark.parametrize(
    ("given", "seen"),
    [((), ["m", "KIND_CPU", 1]), ((InstanceGroup(kind=InstanceKind.KIND_CPU, count=3),), ["m_0", "KIND_CPU", 3])],
)
def test_the_instance_groups_that_will_be_can_be_read(make: Serve, given: tuple[InstanceGroup, ...], seen: list[object]) -> None:
    """Triton fills them in before it asks the model."""
    code = """
        (group,) = c.as_dict()["instance_group"]
        raise ValueError([group["name"], group["kind"], group["count"]])
"""
    served = make(_code(code), instance_group=given)
    with pytest.raises(Internal, match=re.escape(f"ValueError: {seen}\n")):
        served.backend.auto_complete(served.context)


FAILURES = {
    'raise ValueError("ac boom")': "ValueError: ac boom\n\nAt:\n  {path}(18): auto_complete_config\n",
    "return None": "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object.",
    "return {}": "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object.",
    "c.as_dict()['max_batch_size'] = {1}": (
        "auto_complete_config made a configuration that is not JSON: Object of type set is not JSON serializable"
    ),
}


@pytest.mark.parametrize("code", FAILURES)
def test_failures(make: Serve, code: str) -> None:
    served = make(_code("        " + code))
    with pytest.raises(Internal) as caught:
        served.backend.auto_complete(served.context)
    assert caught.value.message == FAILURES[code].replace("{path}", str(served.context.version_directory / "model.py"))


def test_a_result_that_is_no_configuration_is_refused(make: Serve) -> None:
    config = make(None).context.config
    given = to_json(config)
    for changed, text in [
        ({"input": [{"name": "X", "data_type": "TYPE_FOO", "dims": [1]}]}, "TYPE_FOO"),
        ({"output": [{"name": "X", "data_type": "TYPE_FP32", "dims": "abc"}]}, "abc"),
        ({"max_batch_size": "many"}, "many"),
    ]:
        with pytest.raises(InvalidArgument, match=f"auto_complete_config of model 'm' made an invalid configuration: .*{text}"):
            merge(config, given, {**given, **changed})


@pytest.fixture
def completion(make: Serve) -> Completion:
    """Over a configuration with IN (FP32, [-1]), OUT likewise, max_batch_size 8."""
    import json

    return Completion(json.dumps(to_json(make(None, max_batch_size=8).context.config)))


def _tensor(**properties: object) -> dict[str, object]:
    return {"name": "IN", "data_type": "TYPE_FP32", "dims": [-1], **properties}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            _tensor(data_type="TYPE_INT32"),
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'IN', model provides TYPE_INT32",
        ),
        (
            _tensor(dims=[7]),
            "model 'm', tensor 'IN': the model expects dims [7] but the model configuration specifies dims [-1]",
        ),
        (
            _tensor(optional=True),
            "model 'm', tensor 'IN': the model expects optional True but the model configuration specifies optional False",
        ),
        (
            _tensor(labels="x"),
            (
                "input 'IN' in auto-complete-config function for model 'm' contains property other than 'name', 'data_type', "
                "'dims' and 'optional'."
            ),
        ),
        (
            {"data_type": "TYPE_FP32", "dims": [1]},
            "input in auto-complete-config function for model 'm' is missing 'name' property.",
        ),
        (
            {"name": "X", "dims": [1]},
            "input 'X' in auto-complete-config function for model 'm' is missing 'data_type' property.",
        ),
        (
            {"name": "X", "data_type": "TYPE_FP32"},
            "input 'X' in auto-complete-config function for model 'm' is missing 'dims' property.",
        ),
    ],
)
def test_inputs_that_contradict(completion: Completion, given: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as caught:
        completion.add_input(given)
    assert str(caught.value) == text
    if "optional" not in str(given) and "labels" not in given:
        with pytest.raises(ValueError, match=r"\S") as caught:
            completion.add_output({**given, "name": "OUT"} if "IN" in given.values() else given)
        assert str(caught.value) == text.replace("input", "output").replace("'IN'", "'OUT'")


def test_schedulers_and_sizes_that_contradict(completion: Completion, make: Serve) -> None:
    with pytest.raises(ValueError, match="configuration specified max_batch_size 8, but in auto-complete-config function"):
        completion.set_max_batch_size(2)
    completion.add_input(_tensor())
    assert [entry["name"] for entry in completion.as_dict()["input"]] == ["IN"]
    completion.as_dict()["sequence_batching"] = to_json(make(None, sequence_batching=SequenceBatching()).context.config)[
        "sequence_batching"
    ]
    with pytest.raises(ValueError, match=r"Configuration specified scheduling_choice as 'sequence_batching', but"):
        completion.set_dynamic_batching()
    completion.set_model_transaction_policy({"decoupled": True})
    with pytest.raises(ValueError, match="which is already set to 'True'"):
        completion.set_model_transaction_policy({"decoupled": False})
    with pytest.raises(ValueError, match=r"contains property other than 'decoupled'\."):
        completion.set_model_transaction_policy({"other": False})

"""Features of a model.py, the same in a process of its own and in a thread of the server."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.backends.python.conftest import PREAMBLE, Serve, request
from tpy.config.model_config import ModelInput
from tpy.errors import Internal, NotFound
from tpy.messages import DataType, SequencePosition, Tensor
from tpy.messages.datatypes import BY_NUMBER

COPY = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(tensor(given(r))) for r in requests]
"""

FIXED_TYPES = [kind for kind in BY_NUMBER.values() if kind not in (DataType.INVALID, DataType.BYTES, DataType.BF16)]


def test_every_type_of_fixed_size_and_every_shape_comes_back(serve: Serve) -> None:
    served = serve(COPY)
    shapes: list[tuple[int, ...]] = [(3,), (0,), (2, 0, 3), (1, 2, 3), (), (5000,)]
    requests = [
        request(np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape).astype(kind.numpy))
        for kind in FIXED_TYPES
        for shape in shapes
    ]
    for sent, result in zip(requests, served.run(*requests), strict=True):
        tensor = result.outputs[0]
        assert tensor.datatype is sent.inputs["IN"].datatype
        assert tensor.array.dtype == sent.inputs["IN"].array.dtype
        assert tensor.array.shape == sent.inputs["IN"].array.shape
        assert tensor.array.tolist() == sent.inputs["IN"].array.tolist()


def test_bytes_come_back_as_bytes(serve: Serve) -> None:
    served = serve(COPY)
    elements = np.array([[b"", "schön".encode()], [b"a\0b", b"x" * 100_000]], dtype=object)
    output = served.output(request(elements))
    assert output.tolist() == elements.tolist()
    assert served.output(request(np.empty((0,), object))).shape == (0,)


def test_bf16_crosses_by_dlpack_only(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def execute(self, requests):
                tensor = pb_utils.get_input_tensor_by_name(requests[0], "IN")
                try:
                    tensor.as_numpy()
                except pb_utils.TritonModelException as error:
                    self.text = str(error)
                same = pb_utils.Tensor.from_dlpack("OUT", tensor)
                return [answer(same, pb_utils.Tensor("TEXT", np.array([self.text.encode()], dtype=object)))]
    """)
    numbers = np.array([1.5, -2, 3e38], dtype=ml_dtypes.bfloat16)
    outputs = served.run(request(numbers))[0].outputs
    assert outputs[0].datatype is DataType.BF16
    assert outputs[0].array.tolist() == numbers.tolist()
    assert outputs[1].array.tolist() == [
        b"Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
    ]


def test_large_and_small_tensors_in_one_batch(serve: Serve) -> None:
    served = serve(COPY)
    large = np.arange(3_000_000, dtype=np.float32)
    for _ in range(3):
        arrays = [large, np.arange(4, dtype=np.float32), large[::-1], np.arange(20_000, dtype=np.int64)]
        results = served.run(*[request(array) for array in arrays])
        for array, result in zip(arrays, results, strict=True):
            assert np.array_equal(result.outputs[0].array, array)


def test_answers_stay_as_they_are_while_later_batches_run(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def initialize(self, args):
                self.buffer = np.zeros(1_000_000, np.float32)
            def execute(self, requests):
                self.buffer += 1
                return [answer(tensor(self.buffer)) for r in requests]
    """)
    kept = [served.output() for _ in range(4)]
    assert [(array[0], array[-1]) for array in kept] == [(n, n) for n in (1, 2, 3, 4)]


def test_inputs_stay_as_they_are_while_the_model_keeps_them(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def initialize(self, args):
                self.kept = []
            def execute(self, requests):
                self.kept.append(given(requests[0]))
                return [answer(tensor(np.array([array[0] for array in self.kept])))]
    """)
    for n in range(4):
        output = served.output(request(np.full(500_000, n, np.float32)))
    assert output.tolist() == [0, 1, 2, 3]


def test_arguments_of_initialize_are_all_text(serve: Serve) -> None:
    served = serve(
        """
        class TritonPythonModel:
            def initialize(self, args):
                self.args = args
            def execute(self, requests):
                return [answer(tensor(np.array([json.dumps(self.args)], dtype=object)))]
        """,
        parameters={"greeting": "hello"},
    )
    args = json.loads(served.output().item())
    config = json.loads(args.pop("model_config"))
    assert config["name"] == "m"
    assert config["parameters"]["greeting"] == {"string_value": "hello"}
    assert config["input"][0]["dims"] == [-1]
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "m_0",
        "model_instance_device_id": "0",
        "model_repository": str(served.context.model_directory),
        "model_version": "1",
        "model_name": "m",
    }


def test_a_request_says_what_it_is(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def execute(self, requests):
                r = requests[0]
                said = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), json.loads(r.parameters()),
                        sorted(r.requested_output_names()), [t.name() for t in r.inputs()], r.is_cancelled(),
                        r.inputs()[0].shape(), r.inputs()[0].triton_dtype(), r.inputs()[0].is_cpu()]
                return [answer(tensor(np.array([json.dumps(said)], dtype=object)))]
    """)

    def said(**options: Any) -> Any:
        return json.loads(served.output(request(**options)).item())

    assert said() == ["", 0, 0, 0, {}, ["OUT"], ["IN"], False, [3], 11, True]
    assert said(
        id="seven",
        sequence=SequencePosition(correlation_id="abc", start=True, end=True),
        timeout_us=5,
        parameters={"a": 1, "b": "ü", "c": True, "d": 1.5},
        requested_outputs=("OUT",),
    ) == ["seven", "abc", 3, 5, {"a": 1, "b": "ü", "c": True, "d": 1.5}, ["OUT"], ["IN"], False, [3], 11, True]
    assert said(sequence=SequencePosition(correlation_id=2**63, end=True))[1:3] == [2**63, 2]
    assert said(parameters={"a": math.inf, "b": -math.inf, "c": "null"})[4] == {"a": math.inf, "b": -math.inf, "c": "null"}


def test_optional_inputs_are_absent(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def execute(self, requests):
                found = [pb_utils.get_input_tensor_by_name(r, "MORE") is not None for r in requests]
                return [answer(tensor(np.array([one]))) for one in found]
    """)
    both = {name: Tensor(name, DataType.FP32, np.zeros(1, np.float32)) for name in ("IN", "MORE")}
    assert [result.outputs[0].array.item() for result in served.run(request(), request(inputs=both))] == [False, True]


def test_parameters_of_a_response(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def execute(self, requests):
                said = {"n": 1, "s": "ü", "b": True}
                return [pb_utils.InferenceResponse([tensor(given(r))], parameters=said) for r in requests]
    """)
    assert served.run()[0].parameters == {"n": 1, "s": "ü", "b": True}


def test_only_outputs_that_were_asked_for_are_sent(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def execute(self, requests):
                return [answer(tensor(given(r)), tensor(given(r), "MORE")) for r in requests]
    """)
    assert [t.name for t in served.run(request(requested_outputs=("MORE",)))[0].outputs] == ["MORE"]
    assert [t.name for t in served.run()[0].outputs] == ["OUT", "MORE"]


def test_the_type_of_an_output_is_the_arrays_whatever_the_configuration_says(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def execute(self, requests):
                arrays = [np.zeros(2), np.array([b"a", b"bb"]), np.array(["é", None, 1], dtype=object),
                          np.arange(6, dtype=np.int32)[::2], np.array(3, np.float32)]
                return [answer(*[tensor(array, str(n)) for n, array in enumerate(arrays)])]
    """)
    outputs = served.run()[0].outputs
    assert [t.datatype.value for t in outputs] == ["FP64", "BYTES", "BYTES", "INT32", "FP32"]
    assert [t.array.tolist() for t in outputs[1:]] == [[b"a", b"bb"], ["é".encode(), b"None", b"1"], [0, 2, 4], 3.0]


def test_an_error_is_its_own_requests_only(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def execute(self, requests):
                bad = pb_utils.InferenceResponse([], pb_utils.TritonError("not here", pb_utils.TritonError.NOT_FOUND))
                plain = pb_utils.InferenceResponse(error=pb_utils.TritonError("own text"))
                return [answer(tensor(given(requests[0]))), bad, plain]
    """)
    good, missing, plain = served.run(request(), request(), request())
    assert good.error is None
    assert isinstance(missing.error, NotFound)
    assert (missing.error.message, missing.outputs) == ("not here", ())
    assert isinstance(plain.error, Internal)
    assert plain.error.message == "own text"


FAILURES = {
    "raise ValueError('boom\\nsecond line')": "ValueError: boom\nsecond line\n\nAt:\n  {path}(19): execute\n",
    "raise ValueError": "ValueError: <EMPTY MESSAGE>\n\nAt:\n  {path}(19): execute\n",
    "helper()": "KeyError: 'deep'\n\nAt:\n  {path}(16): helper\n  {path}(19): execute\n",
    "raise pb_utils.TritonModelException('tme')": "TritonModelException: tme\n\nAt:\n  {path}(19): execute\n",
    "sys.exit(3)": "SystemExit: 3\n\nAt:\n  {path}(19): execute\n",
    "raise KeyboardInterrupt('kb')": "KeyboardInterrupt: kb\n\nAt:\n  {path}(19): execute\n",
    "exec('1 +')": "SyntaxError: invalid syntax (<string>, line 1)\n\nAt:\n  {path}(19): execute\n",
    "return tensor(np.zeros(2, np.complex64))": (
        "TritonModelException: NumPy dtype is not supported.\n\nAt:\n  {path}(7): tensor\n  {path}(19): execute\n"
    ),
    "return tensor(np.zeros(2, '>f4'))": (
        "TritonModelException: NumPy dtype is not supported.\n\nAt:\n  {path}(7): tensor\n  {path}(19): execute\n"
    ),
    "return tensor(np.zeros(2), '')": (
        "TritonModelException: Tensor name cannot be an empty string.\n\nAt:\n  {path}(7): tensor\n  {path}(19): execute\n"
    ),
    "return ()": "Expected a list in the execute return, found type '<class 'tuple'>'.",
    "return ['x']": "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'str'>'.",
    "return []": (
        "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
        "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n"
    ),
}


@pytest.mark.parametrize("code", FAILURES)
def test_a_failing_execute(make: Serve, code: str) -> None:
    served = make(
        f"""
def helper():
    raise KeyError("deep")
class TritonPythonModel:
    def execute(self, requests):
        {code}
""",
        "thread",
    )
    with pytest.raises(Internal) as caught:
        served.run()
    path = served.context.version_directory / "model.py"
    assert caught.value.message == "Failed to process the request(s) for model 'm_0', message: " + FAILURES[code].format(
        path=path
    )


def test_outputs_that_cannot_be_sent_are_the_error_of_their_request(serve: Serve) -> None:
    served = serve("""
        class Mute:
            def __str__(self):
                raise Mute.Error()
            class Error(Exception):
                def __str__(self):
                    raise Mute.Error()
        class TritonPythonModel:
            def execute(self, requests):
                if requests[0].request_id():
                    raise Mute.Error()
                elements = ["fine", "half\\udcff", Mute()]
                return [answer(tensor(np.array([element], dtype=object))) for r, element in zip(requests, elements)]
    """)
    fine, half, mute = served.run(request(), request(), request())
    assert fine.outputs[0].array.tolist() == [b"fine"]
    assert half.error is not None
    assert half.error.reason().startswith("Internal: the outputs of the response cannot be sent: UnicodeEncodeError: 'utf-8'")
    assert mute.error is not None
    assert mute.error.message == "the outputs of the response cannot be sent: Error: <its text cannot be read>"
    with pytest.raises(Internal, match="message: Error: <its text cannot be read>"):
        served.run(request(id="fails"))


def test_an_instance_lives_on_after_a_failure(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def execute(self, requests):
                if requests[0].request_id():
                    raise ValueError(requests[0].request_id())
                return [answer(tensor(given(r))) for r in requests]
    """)
    for text in ("one", "two", "half \N{SNOWMAN}"):
        with pytest.raises(Internal, match=f"message: ValueError: {text}\n\nAt:\n  .*model.py.*: execute\n"):
            served.run(request(id=text))
        served.output()


def test_texts_that_are_no_unicode_still_arrive(make: Serve) -> None:
    served = make("""
        class TritonPythonModel:
            def execute(self, requests):
                pb_utils.Logger.log_info("\\udcff")
                if requests[0].request_id() == "name":
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("\\udcff", given(requests[0]))])]
                if requests[0].request_id() == "parameters":
                    return [pb_utils.InferenceResponse([tensor(given(requests[0]))], parameters={"\\udcff": "\\udcff"})]
                if requests[0].request_id():
                    return [pb_utils.InferenceResponse(error=pb_utils.TritonError("half \\udcff"))]
                raise ValueError("half \\udcff")
    """)
    with pytest.raises(Internal, match="ValueError: half "):
        served.run()
    error = served.run(request(id="own"))[0].error
    assert error is not None
    assert error.message == "half ?"
    with pytest.raises(Internal, match=r"Tensor name '\\udcff' is not valid Unicode\."):
        served.run(request(id="name"))
    assert served.run(request(id="parameters"))[0].parameters == {"?": "?"}


LOAD_FAILURES = {
    "class TritonPythonModel:\n    def execute(self, r)\n": "SyntaxError: expected ':' (model.py, line 2)",
    "x = 1\n": (
        "AttributeError: module '1.model' has no attribute 'TritonPythonModel'; expected a class of that name, with a "
        "method execute, in '{path}', which defines x"
    ),
    "TritonPythonModel = 3\n": "TypeError: TritonPythonModel of module '1.model' is not a class",
    "class TritonPythonModel:\n    def initialize(self, args):\n        raise RuntimeError('init boom')\n": (
        "RuntimeError: init boom\n\nAt:\n  {path}(3): initialize\n"
    ),
    "import sys\nsys.exit(4)\n": None,
    "import not_there_at_all\n": None,
}


@pytest.mark.parametrize("code", LOAD_FAILURES)
def test_a_model_that_does_not_load_says_why(serve: Serve, code: str) -> None:
    served = serve(code, raw=True)
    with pytest.raises(Internal) as caught:
        served.run()
    wanted = LOAD_FAILURES[code]
    if wanted is not None:
        assert caught.value.message == wanted.format(path=served.context.version_directory / "model.py")
    elif "sys.exit" in code:
        assert caught.value.message.startswith("SystemExit: 4\n\nAt:\n")
    else:
        path = served.context.version_directory / "model.py"
        head = f"ModuleNotFoundError: No module named 'not_there_at_all'\n\nAt:\n  {path}(1): <module>\n"
        assert caught.value.message.startswith(head)
        *frames, _, next_step = caught.value.message.splitlines()[4:]
        assert next_step.startswith("Install it for /")
        assert next_step.endswith(
            "or name an environment that has it in the parameter EXECUTION_ENV_PATH of the model's config.pbtxt"
        )
        assert [line.split(": ")[-1] for line in frames] == [
            "_call_with_frames_removed",
            "exec_module",
            "_load_unlocked",
            "_find_and_load_unlocked",
            "_find_and_load",
        ]


def test_a_missing_model_file(serve: Serve) -> None:
    served = serve(None)
    with pytest.raises(Internal) as caught:
        served.run()
    assert caught.value.message.startswith(
        f"Python model file not found in '{served.context.version_directory / 'model.py'}'; the folder holds "
    )


def test_another_file_name(serve: Serve) -> None:
    assert serve(COPY, default_model_filename="other-name.py").output().tolist() == [0, 1, 2]
    with pytest.raises(Internal, match=r"""Model name must end with '\.py'\. Model name is "model\.txt"\."""):
        serve(COPY, default_model_filename="model.txt").run()


def test_a_model_without_execute_loads_and_then_fails(serve: Serve) -> None:
    served = serve("class TritonPythonModel:\n    pass\n")
    path = served.context.version_directory / "model.py"
    with pytest.raises(Internal) as caught:
        served.run()
    assert caught.value.message == (
        f"Failed to process the request(s) for model 'm_0', message: Python model {path} does not implement `execute` method."
    )


def test_modules_beside_the_model_can_be_imported(serve: Serve) -> None:
    served = serve(
        """
        from . import neighbour
        import shared_code
        class TritonPythonModel:
            def execute(self, requests):
                return [answer(tensor(np.array([neighbour.VALUE, shared_code.VALUE])))]
        """,
        files={"1/neighbour.py": "VALUE = 1", "shared_code.py": "VALUE = 2"},
    )
    assert served.output().tolist() == [1, 2]
    folders = [served.context.version_directory, served.context.model_directory]
    assert not [path for folder in folders for path in folder.iterdir() if path.name == "__pycache__"]


def test_a_model_loaded_again_is_read_again(serve: Serve) -> None:
    served = serve("import beside\n" + PREAMBLE + COPY.replace("given(r)", "np.array([beside.VALUE])"), raw=True)
    for value in (1, 2):
        (served.context.version_directory / "beside.py").write_text(f"VALUE = {value}")
        assert served.output().tolist() == [value]
        served.close()


def test_where_the_model_lies(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def execute(self, requests):
                return [answer(tensor(np.array([pb_utils.get_model_dir()], dtype=object)))]
    """)
    assert Path(served.output().item().decode()) == served.context.version_directory


def test_logger_writes_to_the_servers_log(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def initialize(self, args):
                pb_utils.Logger.log_info("one\\nand a half")
                pb_utils.Logger.log_warn("two")
                pb_utils.Logger.log_error("three")
                pb_utils.Logger.log_verbose("four")
                pb_utils.Logger.log("five", pb_utils.Logger.ERROR)
            def finalize(self):
                raise ValueError("at the end")
    """)
    assert served.instance
    served.close()
    assert "m_0: one\nand a half" in served.logged("info")
    assert served.logged("warning") == ["m_0: two"]
    assert served.logged("error")[:2] == ["m_0: three", "m_0: five"]
    assert served.logged("error")[2].startswith("m_0: finalize failed (model 'm'): ValueError: at the end\n")
    assert "m_0: four" in served.logged("verbose")


def test_a_request_learns_that_it_was_cancelled(serve: Serve) -> None:
    served = serve("""
        import threading
        class TritonPythonModel:
            def execute(self, requests):
                seen = []
                thread = threading.Thread(target=lambda: seen.append(requests[1].is_cancelled()))
                thread.start()
                thread.join()
                return [answer(tensor(np.array([r.is_cancelled(), *seen]))) for r in requests]
    """)
    results = served.run(request(), request(cancelled=lambda: True), request())
    assert [result.outputs[0].array.tolist() for result in results] == [[False, True], [True, True], [False, True]]


def test_a_wrong_name_of_an_input_is_told_once(serve: Serve) -> None:
    """Not that of an input that a request may leave out, nor of a request that the model makes itself."""
    served = serve(
        """
        class TritonPythonModel:
            def execute(self, requests):
                found = [pb_utils.get_input_tensor_by_name(requests[0], name) for name in ("in", "MAYBE", "START", "in")]
                own = pb_utils.InferenceRequest(model_name="other", inputs=[], requested_output_names=["X"])
                assert pb_utils.get_input_tensor_by_name(own, "X") is None
                assert found == [None] * 4
                return [answer(tensor(given(r))) for r in requests]
        """,
        input=(
            ModelInput(name="IN", data_type=DataType.FP32, dims=(-1,)),
            ModelInput(name="MAYBE", data_type=DataType.INT64, dims=(2, 3), optional=True),
        ),
    )
    for _ in range(3):
        served.output()
    served.close()
    told = [text for level, text in served.logs if level == "warning"]
    reason = "returns None: the model has no such input; its inputs are IN (FP32 [-1]), MAYBE (INT64 [2,3]); logged once"
    assert [text[text.index("get_input") :] for text in told] == [
        f"get_input_tensor_by_name(request, 'in') {reason}",
        f"get_input_tensor_by_name(request, 'START') {reason}",
    ]

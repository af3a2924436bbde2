"""Compiled backends that do one thing each, from good to very bad, in the server's process and in workers."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import processes
from tests.e2e.waiting import wait_until
from tests.native.compiled import library
from tests.native.hosted import Compiled
from tpy.backend import AnswerLater, InstanceFailure
from tpy.errors import InvalidArgument, NotFound, TpyError, Unsupported
from tpy.messages import DataType, SequencePosition, Tensor
from tpy.testing.hosting import HostedModel
from tpy.testing.requests import RecordingSender
from tpy_data.backends.isolated import IsolatedBackend
from tpy_native import host
from tpy_native import library as native_library

Make = Callable[..., Compiled]


@pytest.fixture(params=["thread", "process"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Compiled] = []

    def make(behaviour: str = "", **options: object) -> Compiled:
        made.append(Compiled(tmp_path / f"{len(made)}", behaviour, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_batch_is_one_execution_with_a_result_for_each_request(make: Make, isolation: str) -> None:
    model = make(isolation=isolation)
    results = model.instance().execute(*[model.request(value) for value in (1.0, 2.0, 3.0)])
    assert [result.outputs[0].array.tolist() for result in results] == [[[1.0, 1.0]], [[2.0, 2.0]], [[3.0, 3.0]]]


def test_all_of_a_request_is_told(make: Make, isolation: str) -> None:
    model = make("describes", isolation=isolation)
    request = model.request(
        id="abc",
        timeout_us=5,
        sequence=SequencePosition(correlation_id=7, start=True),
        parameters={"text": "hä", "number": -3, "truth": True, "half": 0.5},
        requested_outputs=("Y",),
    )
    (result,) = model.instance().execute(request)
    assert result.outputs[0].array[0, 0].decode() == (
        "id=abc correlation=7/- flags=1 timeout=5 outputs=1:Y cancelled=0 instance=m_0 text='hä' number=-3 truth=yes half=0.50"
    )
    assert result.parameters == {"word": "said", "truth": True, "half": 0.5}


def test_a_correlation_id_may_be_a_text_and_all_outputs_are_listed_where_none_is_asked_for(make: Make) -> None:
    model = make("describes")
    (result,) = model.instance().execute(model.request(sequence=SequencePosition(correlation_id="s", end=True)))
    assert "correlation=0/s flags=2 timeout=0 outputs=1:Y" in result.outputs[0].array[0, 0].decode()


def test_a_decoupled_model_answers_from_a_thread_of_its_own(make: Make, isolation: str) -> None:
    model = make("streams", isolation=isolation)
    sender = RecordingSender()
    assert list(model.instance().execute(model.request(sender=sender))) == []
    assert sender.finished.wait(20)
    *some, last = sender.sent
    assert [result.outputs[0].array.tolist() for result, _ in some if result is not None] == [[0], [1], [2]]
    assert [result.parameters for result, _ in some if result is not None] == [{"index": 0}, {"index": 1}, {"index": 2}]
    assert last[1]


def test_an_answer_may_come_later(make: Make) -> None:
    model = make("answers-late")
    (result,) = model.instance().execute(model.request(4.0))
    assert isinstance(result, AnswerLater)
    sender = RecordingSender()
    result.begin(sender)
    assert sender.finished.wait(20)
    ((answer, final),) = sender.sent
    assert final
    assert answer is not None
    assert answer.outputs[0].array.tolist() == [[4.0, 4.0]]


def test_a_configuration_is_completed(make: Make, isolation: str) -> None:
    model = make("completes", isolation=isolation)
    completed = model.backend.auto_complete(model.context)
    assert completed.max_batch_size == 4
    assert [(tensor.name, tensor.dims) for tensor in (*completed.input, *completed.output)] == [("X", (2,)), ("Y", (2,))]


def test_metrics_of_the_plugin_are_the_models(make: Make) -> None:
    model = make("counts")
    with model.instance() as instance:
        instance.execute(model.request())
        (family,) = model.metrics.families()
        assert (family.name, [sample.value for sample in family.samples]) == ("behaviours_total", [1.0])


def test_readiness_is_asked_of_the_instance(make: Make) -> None:
    for behaviour, ready in (("", True), ("not-ready", False)):
        instance = make(behaviour).instance().model_instance
        assert instance.has_readiness_check  # type: ignore[union-attr]
        assert instance.check_ready(1.0) is ready  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("behaviour", "where"), [("fails-model", "ModelInitialize"), ("fails-instance", "ModelInstanceInitialize")]
)
def test_an_error_while_loading_is_the_reason(make: Make, isolation: str, behaviour: str, where: str) -> None:
    model = make(behaviour, isolation=isolation)
    with pytest.raises(TpyError, match=f"^{where} was told to fail$"):
        model.instance()


def test_an_error_of_an_execution_is_every_requests(make: Make, isolation: str) -> None:
    model = make("fails-execute", isolation=isolation)
    instance = model.instance()
    for _ in range(2):  # the instance stays
        results = instance.execute(model.request(), model.request())
        assert [type(result.error) for result in results] == [InvalidArgument, InvalidArgument]
        assert {str(result.error) for result in results} == {"ModelInstanceExecute was told to fail"}


def test_an_error_while_unloading_is_told(make: Make) -> None:
    model = make("fails-model-end")
    loaded = HostedModel(model.backend, model.context)
    with pytest.raises(InvalidArgument, match=r"^ModelFinalize was told to fail$"):
        loaded.close()


def test_an_error_of_an_instances_end_is_told(make: Make) -> None:
    instance = make("fails-instance-end").instance()
    with pytest.raises(InvalidArgument, match=r"^ModelInstanceFinalize was told to fail$"):
        instance.close()


def test_an_error_of_the_backends_end_is_told(make: Make) -> None:
    model = make("fails-backend-end")
    model.instance()
    model.close()
    assert model.logged(r"^error: backend 'behaviours' failed to close: InvalidArgument: Finalize was told to fail$")


@pytest.mark.parametrize("where", ["instance", "model", "backend"])
def test_a_worker_that_fails_or_crashes_at_its_end_has_ended(make: Make, where: str) -> None:
    for behaviour, said in ((f"fails-{where}-end", "Finalize was told to fail"), (f"crashes-{where}-end", "SIGABRT")):
        model = make(behaviour, isolation="process")
        (result,) = model.instance().execute(model.request())
        assert result.error is None
        model.close()
        assert model.logged(said)


def test_a_request_that_is_released_without_a_response_is_an_error(make: Make, isolation: str) -> None:
    model = make("never-answers", isolation=isolation)
    (result,) = model.instance().execute(model.request())
    assert str(result.error) == "backend 'behaviours' released the request without a response"


def test_a_second_release_is_refused(make: Make, isolation: str) -> None:
    model = make("releases-twice", isolation=isolation)
    instance = model.instance()
    for _ in range(3):
        (result,) = instance.execute(model.request())
        assert result.error is None
    assert model.logged("TRITONBACKEND_RequestRelease: the request was released before")
    assert not model.logged("accepted")


def test_an_output_of_a_response_that_is_gone_is_refused(make: Make, isolation: str) -> None:
    model = make("keeps-an-output", isolation=isolation)
    (result,) = model.instance().execute(model.request(2.0))
    assert result.outputs[0].array.tolist() == [[2.0, 2.0]]
    for function in ("TRITONBACKEND_OutputBuffer", "TRITONBACKEND_OutputBufferAttributes"):
        assert model.logged(f"{function}: ")
    assert not model.logged("accepted")


def test_a_second_answer_is_refused_and_the_first_one_counts(make: Make, isolation: str) -> None:
    model = make("answers-twice", isolation=isolation)
    (result,) = model.instance().execute(model.request(2.0))
    assert result.outputs[0].array.tolist() == [[2.0, 2.0]]


def test_requests_that_are_never_released_are_counted_at_the_end(make: Make) -> None:
    model = make("never-releases")
    with model.instance() as instance:
        for _ in range(3):
            (result,) = instance.execute(model.request())
            assert result.error is None
    assert model.logged("instance 'm_0' ended with 3 requests that its backend never released")


@pytest.mark.parametrize("behaviour", ["writes-too-far", "writes-beyond-a-state", "writes-beyond-what-is-not-sent"])
def test_writing_beyond_a_buffer_costs_the_instance(make: Make, isolation: str, behaviour: str) -> None:
    model = make(behaviour, isolation=isolation)
    with pytest.raises(InstanceFailure, match="written beyond the buffer of an output"):
        model.instance().execute(model.request())


def test_a_crash_costs_the_instance_which_is_made_again(make: Make) -> None:
    model = make("crashes", isolation="process")
    for _ in range(2):
        with pytest.raises(InstanceFailure, match="SIGABRT"):
            model.instance().execute(model.request())


@pytest.mark.parametrize(("source", "reason"), [("refuses", "^Initialize was told to fail$"), ("aborts", "SIGABRT")])
def test_a_backend_whose_initialise_fails_or_crashes_fails_the_load(make: Make, source: str, reason: str) -> None:
    model = make(source=source, isolation="process")
    for _ in range(2):
        with pytest.raises(TpyError, match=reason):
            model.instance()


@pytest.mark.parametrize("behaviour", ["crashes-model", "crashes-instance"])
def test_a_crash_while_loading_is_the_reason(make: Make, behaviour: str) -> None:
    model = make(behaviour, isolation="process")
    with pytest.raises(TpyError, match="SIGABRT while loading the model"):
        model.instance()


def test_a_worker_is_the_default(make: Make) -> None:
    assert isinstance(make(isolation="").backend, IsolatedBackend)


def _load(make: Make, source: str) -> object:
    return make(source=source).backend


def test_a_backend_whose_initialise_fails_is_refused_in_this_process_too(make: Make) -> None:
    with pytest.raises(TpyError, match=r"^Initialize was told to fail$"):
        _load(make, "refuses")


def test_a_newer_interface_is_refused_with_both_versions(make: Make) -> None:
    with pytest.raises(Unsupported, match=r"\(this server has TRITONBACKEND API 1\.19; the library was built for 1\.99\)$"):
        _load(make, "newer")


def test_a_function_of_a_later_interface_is_named(make: Make) -> None:
    with pytest.raises(Unsupported, match=r"it needs TRITONBACKEND_OfTheFuture, which is not in TRITONBACKEND API 1\.19"):
        _load(make, "future")


def test_a_library_without_entry_points_is_refused(make: Make) -> None:
    with pytest.raises(
        NotFound, match="unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in backend library"
    ):
        _load(make, "empty")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda content: content[:18] + struct.pack("<H", 183 if platform.machine() == "x86_64" else 62) + content[20:],
            "it was built for ",
        ),
        (lambda content: content[:4] + b"\x01" + content[5:], "it is not for a little-endian machine with 64 bits"),
        (lambda content: b"MZ" + content[2:], "it is not a shared library"),
        (lambda content: content[:100], "the file is cut off or damaged"),
        (lambda content: content[:4000], "the file is cut off or damaged"),
        (lambda content: b"", "it is not a shared library"),
    ],
)
def test_a_file_for_another_machine_is_refused_before_it_is_loaded(
    tmp_path: Path, change: Callable[[bytes], bytes], reason: str
) -> None:
    path = tmp_path / "libtriton_x.so"
    path.write_bytes(change(library("empty").read_bytes()))
    with pytest.raises(InvalidArgument, match=f"unable to load backend library '{path}': {reason}"):
        native_library.read(path)


def test_what_is_not_contiguous_is_copied(make: Make) -> None:
    model = make()
    request = model.request()
    strided = np.arange(8, dtype=np.float32).reshape(2, 4)[:, ::2]
    object.__setattr__(request, "inputs", {"X": type(request.inputs["X"])("X", request.inputs["X"].datatype, strided)})
    (result,) = model.instance().execute(request)
    assert result.outputs[0].array.tolist() == [[0.0, 2.0], [4.0, 6.0]]


@pytest.mark.parametrize(
    "array",
    [
        np.full((1, 2), 2.5, np.float32),
        np.full((1, 4), 2.5, np.float32)[:, ::2],
        np.full((1, 2), 2.5, ">f4"),
        np.asfortranarray(np.full((2, 2), 2.5, np.float32))[:1],
        np.ndarray((1, 2), np.float32, b"\0" + np.full(2, 2.5, np.float32).tobytes(), 1),
        np.full((1, 2), 2.5, np.float32).view(np.memmap),
    ],
    ids=["contiguous", "strided", "other byte order", "by columns", "unaligned", "of a subclass"],
)
def test_arrays_of_every_kind_reach_the_plugin(make: Make, array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    model = make()
    request = model.request()
    object.__setattr__(request, "inputs", {"X": Tensor("X", DataType.FP32, array)})
    (result,) = model.instance().execute(request)
    assert result.outputs[0].array.tobytes() == array.tobytes()


def test_a_numpy_with_another_binary_interface_is_refused() -> None:
    version = ctypes.CFUNCTYPE(ctypes.c_uint)(lambda: 0x03000000)
    table = (ctypes.c_void_p * 300)()
    table[0] = ctypes.cast(version, ctypes.c_void_p).value
    make_capsule = ctypes.pythonapi.PyCapsule_New
    make_capsule.restype, make_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    assert not host().function("tpy_start_batches")((), make_capsule(ctypes.addressof(table), None, None))


def test_a_shape_that_is_changed_in_place_meanwhile_does_no_harm(make: Make) -> None:
    model = make("answers-late")
    request = model.request(2.0)
    (result,) = model.instance().execute(request)
    request.inputs["X"].array.shape = (2, 1)
    assert isinstance(result, AnswerLater)
    sender = RecordingSender()
    result.begin(sender)
    assert sender.finished.wait(20)
    ((answer, _),) = sender.sent
    assert answer is not None
    assert answer.outputs[0].array.tolist() == [[2.0, 2.0]]


def test_outputs_are_aligned_for_vector_instructions_and_own_their_memory(make: Make) -> None:
    model = make()
    kept = []
    with model.instance() as instance:
        for value in range(50):
            (result,) = instance.execute(model.request(value))
            kept.append(result.outputs[0].array)
    assert all(array.ctypes.data % 64 == 0 and array.flags.writeable for array in kept)
    assert [array.tolist() for array in kept] == [[[float(value)] * 2] for value in range(50)]


def test_memory_of_outputs_and_of_requests_is_given_back(make: Make, isolation: str) -> None:
    """Of this process and its workers: memory, descriptors and threads."""
    others = set(processes.family(os.getpid())) - {os.getpid()}  # of tests before
    model = make(isolation=isolation)
    instance = model.instance()

    def execute(times: int) -> None:
        for _ in range(times):
            instance.execute(model.request())

    execute(500)
    members = [process for process in processes.family(os.getpid()) if process not in others]
    before = [_held(process) for process in members]
    execute(20_000 if isolation == "thread" else 3_000)
    for process, (resident, descriptors, threads) in zip(members, before, strict=True):
        wait_until(lambda: _held(process)[1] <= descriptors and _held(process)[2] <= threads)  # noqa: B023  # called at once
        assert _held(process)[0] - resident < 4 << 20


def _held(process: int) -> tuple[int, int, int]:
    """Resident bytes, descriptors and threads."""
    folder = Path(f"/proc/{process}")
    resident = int((folder / "statm").read_text().split()[1]) * 4096
    return resident, len(os.listdir(folder / "fd")), len(os.listdir(folder / "task"))

"""The dali backend: files, what is completed, ragged batches, samples that are split, and what goes wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.hosted import completed, context_of, inputs, outputs, parameters, run
from tpy.backend import Backend, BackendSettings, InstancePlacement, ModelContext
from tpy.config.model_config import InstanceKind, ModelInput, ModelOutput, TransactionPolicy
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy.messages import DataType
from tpy.testing import HostedModel, RecordingSender, request_of

pytest.importorskip("nvidia.dali", reason="needs DALI: make test-backends")

from tests.backends.dali import models  # imports DALI
from tests.backends.dali.models import config
from tpy_backends.dali import create, source

ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
ENCODED = ModelInput(name="DALI_INPUT_0", data_type=DataType.UINT8, dims=(-1,), allow_ragged_batch=True)
DECODED = outputs(("DALI_OUTPUT_0", DataType.FP32, (3, 8, 8)))


@pytest.fixture(scope="module")
def backend() -> Backend:
    return create(BackendSettings(name="dali"))


def python_file(root: Path, text: str, name: str = "dali.py", **fields: Any) -> ModelContext:
    context = context_of(root, config(**fields))
    (context.version_directory / name).write_text(text)
    return context


def decoding(root: Path, text: str = models.DECODING, **fields: Any) -> ModelContext:
    return serialized(root, lambda path: models.save_text(path, text), **fields)


def serialized(root: Path, save: Callable[[Path], None] = models.save, **fields: Any) -> ModelContext:
    context = context_of(root, config(**fields))
    save(context.version_directory / "model.dali")
    return context


def test_a_python_file_completes_its_configuration(backend: Backend, tmp_path: Path) -> None:
    context = completed(backend, python_file(tmp_path, models.DOUBLING))
    assert context.config.max_batch_size == 16
    assert [(each.name, each.data_type, each.dims) for each in context.config.input] == [
        ("x", DataType.INT32, (-1,)),
        ("y", DataType.FP32, (-1,)),
    ]
    assert [each.name for each in context.config.output] == ["doubled", "next"]
    with HostedModel(backend, context) as model:
        made = run(model.instance(ON_CPU), context, x=np.array([[1, 2]], np.int32), y=np.ones((1, 3), np.float32))
    assert {name: array.tolist() for name, array in made.items()} == {"doubled": [[2, 4]], "next": [[2, 2, 2]]}


def test_a_file_that_says_no_batches_has_none(backend: Backend, tmp_path: Path) -> None:
    context = serialized(tmp_path)
    (context.model_directory / "config.pbtxt").write_text('backend: "dali"\nmax_batch_size: 0\n')
    context = completed(backend, context)
    assert context.config.max_batch_size == 0
    assert [each.dims for each in context.config.input] == [(-1, -1)]
    with HostedModel(backend, context) as model:
        assert run(model.instance(ON_CPU), context, x=np.ones((5, 2), np.float32))["sum"].tolist() == [2] * 5


def test_the_file_is_serialized_once_for_a_load(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    made = source.serialized
    monkeypatch.setattr(source, "serialized", lambda path, model: (calls.append(path), made(path, model))[1])
    context = completed(backend, python_file(tmp_path, models.DOUBLING, default_model_filename="dali.py"))
    backend.load(context).unload()
    assert len(calls) == 1
    backend.load(context).unload()
    assert len(calls) == 2


def test_pictures_of_any_size_in_one_batch(backend: Backend, tmp_path: Path) -> None:
    """Of several requests, and as strings of one."""
    red, blue = models.jpeg((255, 0, 0), (40, 30)), models.jpeg((0, 0, 255), (9, 70))
    context = decoding(tmp_path, max_batch_size=8, input=(ENCODED,), output=DECODED)
    with HostedModel(backend, context) as model:
        instance = model.instance(ON_CPU)
        requests = [request_of(context.config, {"DALI_INPUT_0": each[None]}) for each in (red, blue)]
        made = [result.outputs[0].array for result in instance.execute(*requests)]
    assert [array.shape for array in made] == [(1, 3, 8, 8)] * 2
    assert [array.mean(axis=(0, 2, 3)).round().tolist() for array in made] == [[1, 0, 0], [0, 0, 1]]
    strings = inputs(("DALI_INPUT_0", DataType.BYTES, (1,)))
    context = decoding(tmp_path / "strings", max_batch_size=8, input=strings, output=DECODED)
    texts = np.array([[red.tobytes()], [blue.tobytes()]], object)
    with HostedModel(backend, context) as model:
        array = run(model.instance(ON_CPU), context, DALI_INPUT_0=texts)["DALI_OUTPUT_0"]
    assert array.mean(axis=(2, 3)).round().tolist() == [[1, 0, 0], [0, 0, 1]]


def test_one_request_that_cannot_be_decoded_costs_the_others_nothing(backend: Backend, tmp_path: Path) -> None:
    context = decoding(tmp_path, max_batch_size=8, input=(ENCODED,), output=DECODED)
    good, bad = models.jpeg((0, 255, 0), (40, 30)), np.arange(40, dtype=np.uint8)
    with HostedModel(backend, context) as model:
        instance = model.instance(ON_CPU)
        results = instance.execute(*[request_of(context.config, {"DALI_INPUT_0": each[None]}) for each in (good, bad, good)])
        assert run(instance, context, DALI_INPUT_0=good[None])["DALI_OUTPUT_0"].shape == (1, 3, 8, 8)
    assert [result.error is None for result in results] == [True, False, True]
    assert "decoders.image" in str(results[1].error)


def test_samples_of_one_request_that_differ_in_shape(backend: Backend, tmp_path: Path) -> None:
    text = models.DECODING.replace("fn.resize(images, resize_x=8, resize_y=8)", "images")
    context = decoding(
        tmp_path,
        text,
        max_batch_size=8,
        input=inputs(("DALI_INPUT_0", DataType.BYTES, (1,))),
        output=outputs(("DALI_OUTPUT_0", DataType.FP32, (3, -1, -1))),
    )
    texts = np.array([[models.jpeg((0, 0, 0), size).tobytes()] for size in ((4, 4), (8, 4))], object)
    with (
        HostedModel(backend, context) as model,
        pytest.raises(Internal, match=r"differ in shape in output 'DALI_OUTPUT_0' \(\[3, 4, 4\], \[3, 4, 8\]\).*pad them"),
    ):
        run(model.instance(ON_CPU), context, DALI_INPUT_0=texts)


def test_samples_are_split_along_their_outer_axis(backend: Backend, tmp_path: Path) -> None:
    context = completed(backend, serialized(tmp_path, models.save_rows, parameters=parameters(split_along_outer_axis="rows")))
    assert context.config.output == outputs(("rows", DataType.INT32, (-1,)))
    with HostedModel(backend, context) as model:
        made = run(model.instance(ON_CPU), context, x=np.arange(8, dtype=np.int32).reshape(2, 4))
    assert made["rows"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_decoupled_model_answers_and_ends(backend: Backend, tmp_path: Path) -> None:
    context = serialized(
        tmp_path,
        input=inputs(("x", DataType.FP32, (-1, 2))),
        output=outputs(("sum", DataType.FP32, (-1,)), ("same", DataType.FP32, (-1, 2))),
        model_transaction_policy=TransactionPolicy(decoupled=True),
    )
    with HostedModel(backend, context) as model:
        senders = [RecordingSender(), RecordingSender()]
        rows = (np.ones((3, 2), np.float32), np.ones((17, 2), np.float32))
        requests = [request_of(context.config, {"x": array}, sender=sender) for array, sender in zip(rows, senders, strict=True)]
        for request in requests:
            assert model.instance(ON_CPU).execute(request) == ()
    (answer, last), (refusal, also_last) = senders[0].sent[0], senders[1].sent[0]
    assert answer is not None
    assert answer.outputs[0].array.tolist() == [2, 2, 2]
    assert refusal is not None
    assert "takes batches of 1 to 16 samples, got 17" in str(refusal.error)
    assert last
    assert also_last


def test_a_video_is_answered_a_few_frames_at_a_time(backend: Backend, tmp_path: Path) -> None:
    colours = [(255, 0, 0)] * 4 + [(0, 255, 0)] * 4 + [(0, 0, 255)] * 3
    context = serialized(
        tmp_path,
        models.save_video,
        max_batch_size=0,
        input=inputs(("VIDEO", DataType.UINT8, (-1, -1))),
        output=outputs(("FRAMES", DataType.UINT8, (-1,) * 5)),
        model_transaction_policy=TransactionPolicy(decoupled=True),
    )
    with HostedModel(backend, context) as model:
        instance = model.instance(ON_CPU)
        for _ in range(2):  # the pipeline is as new after the last frame
            sender = RecordingSender()
            request = request_of(context.config, {"VIDEO": models.video(colours)[None]}, sender=sender)
            assert instance.execute(request) == ()
            made = [(result.outputs[0].array, last) for result, last in sender.sent if result is not None]
            assert [(array.shape, last) for array, last in made] == [
                ((1, 4, 48, 64, 3), False),
                ((1, 4, 48, 64, 3), False),
                ((1, 3, 48, 64, 3), True),
            ]
            seen = [colour for array, _ in made for colour in array[0, :, 20, 20].tolist()]
            np.testing.assert_allclose(seen, colours, atol=3)


def test_a_model_that_is_not_decoupled_says_how_to_serve_a_video(backend: Backend, tmp_path: Path) -> None:
    context = completed(backend, serialized(tmp_path, models.save_video))
    with HostedModel(backend, context) as model:
        film = models.video([(9, 9, 9)] * 9)[None]
        with pytest.raises(Internal, match=r"gives several outputs for one input: set max_batch_size: 0 and .* decoupled: true"):
            run(model.instance(ON_CPU), context, VIDEO=film)


def test_outputs_of_another_type_than_the_configuration_says_are_sent_as_they_are(backend: Backend, tmp_path: Path) -> None:
    context = decoding(
        tmp_path,
        models.SAYS_NOTHING,
        max_batch_size=8,
        input=inputs(("x", DataType.FP32, (-1,))),
        output=(ModelOutput(name="o", data_type=DataType.INT32, dims=(-1,)),),
    )
    with HostedModel(backend, context) as model:
        x = np.array([[0.5, 1.5]], np.float32)
        made = run(model.instance(ON_CPU), context, x=x)["o"]
    assert made.dtype == np.float32
    assert made.tolist() == x.tolist()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("raise ValueError('own words')", "neither a serialized pipeline of DALI nor a Python file of one.*own words"),
        ("x = 1", "Precisely one autoserialize function must exist in the module. Found none"),
        (
            models.DOUBLING.replace('fn.external_source(device="cpu", name="x"', 'fn.external_source(device="gpu", name="x"'),
            "(?i)gpu",
        ),
    ],
)
def test_python_files_that_make_no_pipeline(backend: Backend, tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(Internal, match=f"(?s){error}"):
        backend.auto_complete(python_file(tmp_path, text))


def test_a_file_that_never_ends(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "DALI_SERIALIZE_S_MAX", 1)
    with pytest.raises(Internal, match="it runs for more than 1 s"):
        backend.load(python_file(tmp_path, "while True: pass"))


def test_files_that_are_no_pipelines(backend: Backend, tmp_path: Path) -> None:
    context = context_of(tmp_path, config())
    with pytest.raises(Unavailable, match=r"unable to find '.*model.dali'.*the folder holds nothing"):
        backend.load(context)
    (context.version_directory / "model.dali").write_bytes(b"\x08\x01 cut")
    with pytest.raises(Internal, match=r"'model.dali' is neither a serialized pipeline of DALI nor a Python file of one"):
        backend.load(context)
    (context.version_directory / "dali.py").write_text(models.DOUBLING)  # Triton's order: the second choice
    assert backend.auto_complete(context).max_batch_size == 16
    named = context_of(tmp_path / "named", config(default_model_filename="../m.dali"))
    with pytest.raises(InvalidArgument, match="must be inside the version directory"):
        backend.load(named)


SHORT = """
import resource
import sys
from pathlib import Path

import numpy as np

from tests.backends.dali import models
from tests.backends.dali.test_dali import ON_CPU, python_file
from tests.backends.hosted import completed, context_of, run
from tpy.backend import BackendSettings
from tpy.errors import Internal
from tpy.testing import HostedModel
from tpy_backends.dali import create

backend = create(BackendSettings(name="dali"))
other = completed(backend, python_file(Path(sys.argv[1]), models.DOUBLING))
huge = context_of(Path(sys.argv[1]), models.config("huge"))
with (huge.version_directory / "model.dali").open("wb") as file:
    file.truncate(1 << 33)
with HostedModel(backend, other) as model:
    instance = model.instance(ON_CPU)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30),) * 2)
    try:
        backend.load(huge)
    except Internal as error:
        print(error)
    x = np.array([[1, 2]], np.int32)
    print(run(instance, other, x=x, y=x.astype(np.float32))["doubled"].tolist())
"""


def test_memory_that_is_short_while_loading_costs_the_others_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SHORT, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        f"unable to load model 'huge': memory is short for the {1 << 33} bytes of 'model.dali'",
        "[[2, 4]]",
    ], done.stderr


def test_a_python_file_under_the_name_that_is_configured(backend: Backend, tmp_path: Path) -> None:
    context = python_file(tmp_path, models.DOUBLING, "mine.py")
    mine = python_file(tmp_path, models.DOUBLING, "mine.py", default_model_filename="mine.py")
    with pytest.raises(Unavailable, match=r"the folder holds mine.py"):
        backend.auto_complete(context)
    assert [each.name for each in backend.auto_complete(mine).output] == ["doubled", "next"]


def test_a_library_of_operators_that_is_not_there() -> None:
    with pytest.raises(Internal, match=r"DALI error: cannot load '/nowhere/lib.so'"):
        create(BackendSettings(name="dali", config={"plugin_libs": "/nowhere/lib.so"}))

"""The parts of the protocol, one by one."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.remote.targets import CANARY, HOSTILE, PROTOCOL
from fuzz.target import Violation
from tpy.config import ModelConfig
from tpy.errors import ERROR_OF_CODE, NotFound, TpyError
from tpy.limits.remote import REMOTE_FRAME_BYTES_MAX
from tpy.messages import DataType, InferenceRequest, LogSettings, ServerMetadata, Tensor
from tpy.remote.core import messages as m
from tpy.remote.core.arena import Arena
from tpy.remote.core.framing import FrameSplitter, ProtocolError, frame
from tpy.remote.core.replica import ANY_NAME, ModelEntry, RemoteError, Replica, ReplicaUpdate, ServerState
from tpy.remote.core.tensors import request_of, submit_of


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=40))), st.randoms(use_true_random=False))
def test_frames_arrive_however_they_are_cut(frames: list[tuple[int, bytes]], chance: random.Random) -> None:
    data = b"".join(frame(kind, payload) for kind, payload in frames)
    splitter = FrameSplitter()
    found: list[tuple[int, bytes]] = []
    while data:
        size = chance.randint(1, len(data))
        found += splitter.feed(data[:size])
        data = data[size:]
    assert found == frames
    assert splitter.buffered == 0


@pytest.mark.parametrize("size", [0, REMOTE_FRAME_BYTES_MAX + 1, 2**32 - 1])
def test_a_length_that_no_frame_has_is_refused_before_anything_is_collected(size: int) -> None:
    splitter = FrameSplitter()
    with pytest.raises(ProtocolError, match=f"a frame of {size} bytes"):
        list(splitter.feed(size.to_bytes(4, "little") + b"\x05"))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a frame of kind 99"):
        m.Reader(m.FROM_ENGINE).read(99, b"")


def test_messages_of_the_other_direction_are_refused() -> None:
    both = set(m.FROM_ENGINE) & set(m.FROM_FRONTEND)
    assert both == {m.Kind.RELEASE}
    assert set(m.FROM_ENGINE) | set(m.FROM_FRONTEND) == set(m.Kind)


@given(st.randoms(use_true_random=False))
def test_blocks_never_overlap_and_all_come_back(chance: random.Random) -> None:
    """Against a map of pages."""
    pages = 16
    arena = Arena(pages * 4096)
    taken: dict[int, int] = {}
    for _ in range(60):
        if taken and chance.random() < 0.45:
            offset = chance.choice(list(taken))
            assert arena.release(offset) == taken.pop(offset)
        else:
            size = chance.randint(1, 6 * 4096)
            offset = arena.allocate(size)  # type: ignore[assignment]  # None below
            free = [page for page in range(pages) if not any(o <= page * 4096 < o + s for o, s in taken.items())]
            needed = -(-size // 4096)
            fits = any(all(page + i in free for i in range(needed)) for page in free)
            assert (offset is not None) == fits
            if offset is not None:
                assert all(page in free for page in range(offset // 4096, offset // 4096 + needed))
                taken[offset] = needed * 4096
        assert arena.taken_bytes == sum(taken.values())
    for offset in taken:
        arena.release(offset)
    assert arena.allocate(pages * 4096) == 0


def test_a_release_of_what_was_not_given_is_refused() -> None:
    arena = Arena(8192)
    arena.allocate(1)
    arena.release(0)
    for offset in (0, 4096, -1, 2**63):
        with pytest.raises(ProtocolError, match="where no block is allocated"):
            arena.release(offset)


@pytest.mark.parametrize("datatype", [each for each in DataType if each.itemsize])
def test_every_datatype_and_any_layout_survives(datatype: DataType) -> None:
    array = np.arange(24).astype(datatype.numpy).reshape(2, 3, 4).transpose(2, 0, 1)[::2]
    asked = InferenceRequest(
        model_name="m", inputs=(Tensor("A", datatype, array), Tensor("S", datatype, array[0, 0, 0].reshape(())))
    )
    message = m.Reader(m.FROM_FRONTEND).read(*next(FrameSplitter().feed(m.encode(submit_of(1, 7, asked, lambda size: None)))))
    assert isinstance(message, m.Submit)
    again = request_of(message, lambda offset, size: pytest.fail("no block"))
    for one, other in zip(again.inputs, asked.inputs, strict=True):
        assert one.array.dtype == other.array.dtype
        assert one.array.shape == other.array.shape
        assert one.array.tobytes() == other.array.tobytes()


@pytest.mark.parametrize(
    "tensor",
    [
        m.WireTensor("A", DataType.FP32, (2,), b"1234567"),
        m.WireTensor("A", DataType.FP32, (-1, -1), b"1234"),
        m.WireTensor("A", DataType.FP32, (2**62, 2**62), b"1234"),
        m.WireTensor("A", DataType.FP32, (1,)),
        m.WireTensor("A", DataType.FP32, (1,), elements=[b"1234"]),
        m.WireTensor("A", DataType.FP32, (1,) * 100, b"1234"),
        m.WireTensor("A", DataType.INVALID, (1,), b"1234"),
        m.WireTensor("A", DataType.BYTES, (2,), elements=[b"1234"]),
        m.WireTensor("A", DataType.BYTES, (1,), b"1234"),
        m.WireTensor("A", DataType.BYTES, (1,), block=m.Block(0, 4)),
        m.WireTensor("A", DataType.FP32, (1,), block=m.Block(0, 8)),
    ],
)
def test_tensors_that_contradict_their_description_are_refused(tensor: m.WireTensor) -> None:
    message = m.Submit(1, 7, "m", None, "", (tensor,), (), {}, None, 0, 0, None, 0)
    with pytest.raises(ProtocolError, match="tensor 'A'"):
        request_of(message, lambda offset, size: np.zeros(size, np.uint8))


@pytest.mark.parametrize("kind", list(ERROR_OF_CODE.values()))
def test_errors_keep_their_kind_and_text(kind: type[TpyError]) -> None:
    again = m.Failure.of(kind("so \ud800 it is")).error()
    assert (type(again), again.message) == (kind, kind("so \ud800 it is").message)


def _server(revision: int) -> ServerState:
    unknown = RemoteError(NotFound.code, f"Request for unknown model: '{ANY_NAME}' is not found")
    return ServerState(revision, True, True, ServerMetadata(name="t", version="1", extensions=()), LogSettings(), None, unknown)


def test_a_model_that_has_gone_is_unknown() -> None:
    entry = ModelEntry(RemoteError(NotFound.code, "no"), {}, RemoteError(NotFound.code, "no such version"), (), None)
    replica = Replica(ReplicaUpdate(_server(1), {"a": entry}))
    assert replica.ready_versions("a") == ()
    replica.update(ReplicaUpdate(_server(2), {"a": None}))
    with pytest.raises(NotFound, match=r"Request for unknown model: 'a' is not found"):
        replica.ready_versions("a")
    assert replica.server.revision == 2


def test_configurations_survive() -> None:
    config = ModelConfig(name="m", max_batch_size=3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=ModelConfig) == config


@pytest.mark.parametrize("seed", range(30))
def test_conversations(seed: int) -> None:
    assert PROTOCOL.try_seed(seed) > 0, "it raises Violation for a broken promise"
    assert HOSTILE.try_seed(seed) > 0


def _first_violation() -> None:
    for seed in range(CANARY.smoke_examples):
        CANARY.try_seed(seed)


def test_the_canary_is_found_out() -> None:
    with pytest.raises(Violation):
        _first_violation()

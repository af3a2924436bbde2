"""Frames and tensors between server and worker: written and read back, and any other bytes."""

from __future__ import annotations

import numpy as np

from fuzz.chance import Chance
from fuzz.grpc.wire import cuts
from fuzz.target import Violation
from fuzz.tensors import elements, random_tensor, raw, spoiled
from tpy.messages import DataType, Tensor
from tpy_data.backends.python.worker.wire.core import batch, datatypes
from tpy_data.backends.python.worker.wire.core.frames import (
    DATA_BYTES_MAX,
    HEADER_BYTES_MAX,
    MEMORY_BYTES_MAX,
    FrameDecoder,
    FrameKind,
    ProtocolViolation,
    ReceivedFrame,
    encode,
)

FRAMES = (
    "however its bytes are cut, a stream is read as the frames that it is, up to the first prefix that is wrong, which is"
    " refused; nothing is held but what arrived"
)
TENSORS = (
    "tensors of a message are read back from where they were laid, bit for bit, none over another; a descriptor that does not add"
    " up is a ProtocolViolation, and what is read lies within what was sent"
)


Found = tuple[int, int, bytes, bytes, bytes]
"""Kind, stream, about memory, header, data."""


def expected(stream: bytes) -> tuple[list[Found], bool]:
    """The frames of a stream, and whether it has a wrong prefix: with everything at hand at once."""
    frames: list[Found] = []
    at = 0
    while at + 24 <= len(stream):
        prefix = stream[at : at + 24]
        memory, header, data = (int.from_bytes(prefix[begin : begin + 4], "little") for begin in (4, 8, 12))
        sound = prefix[:2] == b"\x79\x70" and prefix[3] == 3 and (24 + memory + header) % 16 == 0
        too_long = memory > MEMORY_BYTES_MAX or header > HEADER_BYTES_MAX or data > DATA_BYTES_MAX
        if not sound or too_long or prefix[2] not in {int(kind) for kind in FrameKind}:
            return frames, True
        begin, middle = at + 24 + memory, at + 24 + memory + header
        end = middle + data
        if end > len(stream):
            break
        number = int.from_bytes(prefix[16:24], "little")
        frames.append((prefix[2], number, stream[at + 24 : begin], stream[begin:middle], stream[middle:end]))
        at = end
    return frames, False


def run_frames(chance: Chance, decoder_of: type[FrameDecoder] = FrameDecoder) -> int:
    """A stream, sound or not, cut anyhow."""
    pieces: list[bytes] = []
    for _ in chance.rounds((1, 4, 8)):
        header = b"{}" * chance.choice((0, 1, 8, 100))
        data = chance.randbytes(chance.choice((0, 1, 16, 300)))
        number = chance.choice((0, 1, 2**31, 2**64 - 1))
        memory = b"[]" * chance.choice((0, 0, 0, 1, 40))
        pieces.append(b"".join(encode(chance.choice(list(FrameKind)), number, header, [data], len(data), memory)))
    stream = b"".join(pieces)
    if chance.random() < 0.5:
        stream = spoiled(chance, stream)
    return check_stream(stream, list(cuts(chance, stream)), decoder_of)


def check_stream(stream: bytes, pieces: list[bytes], decoder_of: type[FrameDecoder] = FrameDecoder) -> int:
    """One stream in these pieces against all of it at once."""
    frames, wrong = expected(stream)
    decoder = decoder_of()
    found: list[Found] = []
    refused = False
    for piece in pieces:
        decoder.feed(piece)
        try:
            while (frame := decoder.next_frame()) is not None:
                found.append(_parts(frame, decoder))
        except ProtocolViolation:
            refused = True
            break
    if refused is not wrong:
        raise Violation(f"{stream!r}: refused {refused}, expected {wrong}")
    if found != frames:
        raise Violation(f"{stream!r}: found {found}, expected {frames}")
    return 1 + len(frames)


def _parts(frame: ReceivedFrame, decoder: FrameDecoder) -> Found:
    return int(frame.kind), frame.stream, bytes(decoder.note or b""), bytes(frame.header), bytes(frame.data)


def attack(data: bytes) -> int:
    """Any bytes, whole and by the byte."""
    return check_stream(data, [data]) + check_stream(data, [data[at : at + 1] for at in range(len(data))])


def _stored(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """The array as a worker has it: BF16 as its bits."""
    return tensor.array.view(np.uint16) if tensor.datatype is DataType.BF16 else tensor.array


def run_tensors(chance: Chance) -> int:
    """A message's tensors, written and read; then with descriptors that are wrong."""
    tensors = [random_tensor(chance, f"T{index}") for index in range(chance.randint(1, 4))]
    if chance.random() < 0.3:
        size = chance.choice((batch.INLINE_BYTES_MAX, batch.INLINE_BYTES_MAX + 1, 5000))
        tensors.append(Tensor("BIG", DataType.UINT8, np.full(size, 7, np.uint8)))
    layout = batch.Layout()
    descriptors = [layout.add(tensor.name, tensor.datatype.number, _stored(tensor)) for tensor in tensors]
    data = memoryview(b"".join(bytes(each) for each in layout.data))
    segment = np.zeros(layout.segment_bytes, np.uint8)
    for placed in layout.placed:
        if segment[placed.offset : placed.offset + len(placed.data)].any():
            raise Violation("a tensor lies over another")
        segment[placed.offset : placed.offset + len(placed.data)] = np.frombuffer(placed.data, np.uint8)
    if len(data) != layout.data_bytes:
        raise Violation(f"{len(data)} bytes of data, {layout.data_bytes} were announced")
    for descriptor, tensor in zip(descriptors, tensors, strict=True):
        array = batch.read(descriptor, data, segment)
        found = elements(tensor.datatype, datatypes.serialize(array)) if tensor.datatype is DataType.BYTES else array.tobytes()
        should = elements(tensor.datatype, raw(tensor)) if tensor.datatype is DataType.BYTES else raw(tensor)
        if array.shape != tensor.array.shape or found != should:
            raise Violation(f"{descriptor} read as {array}, written {tensor}")
    for _ in chance.rounds((3, 6)):
        _try_descriptor(_spoiled(chance, chance.choice(descriptors)), data, chance.choice((segment, None)))
    return 2


def _spoiled(chance: Chance, descriptor: batch.Descriptor) -> batch.Descriptor:
    name, number, shape, where, offset, size = descriptor
    odd = chance.choice((0, 1, -1, 16, 64, 2**31, 2**63, 2**70, size + 16, offset + 16))
    match chance.randrange(6):
        case 0:
            number = chance.choice((0, 1, 4, 13, 14, 99, -1, odd))
        case 1:
            shape = (*shape, odd)
        case 2:
            shape = (odd,) * chance.choice((0, 1, 2, 70))
        case 3:
            where = chance.choice((0, 1, 2, -1))
        case 4:
            offset = odd
        case _:
            size = odd
    return (name, number, shape, where, offset, size)


def _try_descriptor(descriptor: batch.Descriptor, data: memoryview, segment: batch.Array | None) -> None:
    try:
        array = batch.read(descriptor, data, segment)
    except ProtocolViolation:
        return
    source = len(data) if descriptor[3] == 0 else 0 if segment is None else len(segment)
    if descriptor[1] != datatypes.BYTES and array.nbytes > source:
        raise Violation(f"{descriptor} gave {array.nbytes} bytes of {source}")
    if array.shape != tuple(descriptor[2]):
        raise Violation(f"{descriptor} gave shape {array.shape}")

"""Tensors in shared memory regions: a naive reader and writer of the segment agree with the codec of HTTP, and with others."""

from __future__ import annotations

import json
import os
from typing import Any, Protocol

from fuzz.chance import Chance
from fuzz.target import Violation
from fuzz.tensors import description_of, random_tensor, raw
from tpy.errors import TpyError
from tpy.frontends.http.codec import encode_infer, parse_infer
from tpy.frontends.shared_memory import TensorResolver
from tpy.messages import DataType, InferenceRequest, InferenceResponse, ModelDescription, RegionFacts, RegionKind, Tensor
from tpy.regions import Region, RegionCopies, SegmentRegion

INVARIANT = (
    "an input in a region is what its bytes were when the request was read, whatever is written there afterwards; an output is"
    " written at its place, over what earlier ones wrote there, and no byte beside; anything else is refused in words"
)
RULES = ("input read", "input refused", "outputs written", "output refused", "outputs overlap", "input is output")

SEGMENT_BYTES = 160
_WRONG: tuple[object, ...] = (-1, 2**63, 2**64 - 1, 2**64, 2**200, 1.0, "1", None, True, [], {})

Place = dict[str, object]


class Codec(Protocol):
    """Of a protocol: requests whose inputs and outputs are in regions, and what answers them."""

    def read(
        self, inputs: list[Tensor], outputs: list[Tensor], places: dict[str, Place], tensors: TensorResolver
    ) -> tuple[InferenceRequest, Any]:
        """Returns the request as the server reads it, and how it is to be answered. Raises TpyError."""
        ...

    def answer(self, response: InferenceResponse, plan: Any, description: ModelDescription) -> None:
        """Write the outputs. Raises TpyError."""
        ...


class HttpCodec:
    """JSON."""

    def read(
        self, inputs: list[Tensor], outputs: list[Tensor], places: dict[str, Place], tensors: TensorResolver
    ) -> tuple[InferenceRequest, Any]:
        """As `Codec.read`."""
        document = {
            "inputs": [
                {
                    "name": tensor.name,
                    "datatype": tensor.datatype.value,
                    "shape": list(tensor.array.shape),
                    "parameters": places[tensor.name],
                }
                for tensor in inputs
            ],
            "outputs": [{"name": tensor.name, "parameters": places[tensor.name]} for tensor in outputs],
        }
        return parse_infer(
            json.dumps(document).encode(),
            header_length=None,
            description=description_of([*inputs, *outputs]),
            version=None,
            received_ns=0,
            tensors=tensors,
        )

    def answer(self, response: InferenceResponse, plan: Any, description: ModelDescription) -> None:
        """As `Codec.answer`."""
        encode_infer(response, plan, description)


def segment() -> int:
    """A file without a name. Whoever has it closes it."""
    descriptor = os.memfd_create("fuzz")
    os.ftruncate(descriptor, SEGMENT_BYTES)
    return descriptor


def regions_over(chance: Chance, descriptor: int) -> dict[str, Region]:
    """Two regions of one segment, which may overlap."""
    regions: dict[str, Region] = {}
    copies = RegionCopies()
    for name in ("a", "b"):
        offset = chance.randrange(SEGMENT_BYTES - 1)
        size = chance.randint(1, SEGMENT_BYTES - offset)
        facts = RegionFacts(name=name, kind=RegionKind.SYSTEM, key="/k", offset=offset, byte_size=size)
        regions[name] = SegmentRegion(facts, os.dup(descriptor), copies)
    return regions


def place(chance: Chance, regions: dict[str, Region], size: int) -> Place:
    """Parameters that name `size` bytes somewhere, mostly within a region; some are wrong."""
    name = chance.choice(("a", "b"))
    room = regions[name].facts.byte_size - size
    offset = chance.randint(0, room) if room > 0 else 0
    made: Place = {"shared_memory_region": name, "shared_memory_offset": offset, "shared_memory_byte_size": size}
    if offset == 0 and chance.random() < 0.5:
        del made["shared_memory_offset"]
    if chance.random() < 0.3:
        member = chance.choice(("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"))
        made[member] = chance.choice((*_WRONG, "c", "", SEGMENT_BYTES, size + 1, max(0, size - 1)))
    return made


def span_of(regions: dict[str, Region], given: Place) -> tuple[int, int] | None:
    """The place in the segment, begin and end; None for none."""
    name, offset, size = (given.get(f"shared_memory_{key}", 0) for key in ("region", "offset", "byte_size"))
    if not isinstance(name, str) or name not in regions:
        return None
    if type(offset) is not int or type(size) is not int or min(offset, size) < 0:
        return None
    facts = regions[name].facts
    if offset >= facts.byte_size or offset + size > facts.byte_size:
        return None
    return facts.offset + offset, facts.offset + offset + size


def run(chance: Chance, resolver: type[TensorResolver] = TensorResolver, codec: Codec | None = None) -> int:
    """One request and its answer, over HTTP unless another codec is given."""
    descriptor = segment()
    try:
        _try(chance, descriptor, resolver, codec or HttpCodec())
    finally:
        os.close(descriptor)
    return 2


def _try(chance: Chance, descriptor: int, resolver: type[TensorResolver], codec: Codec) -> None:
    before = bytearray(chance.randbytes(SEGMENT_BYTES))
    regions = regions_over(chance, descriptor)
    inputs = [random_tensor(chance, f"IN{index}") for index in range(chance.randint(1, 2))]
    outputs = [random_tensor(chance, f"OUT{index}") for index in range(chance.randint(1, 3))]
    places = {tensor.name: place(chance, regions, len(raw(tensor))) for tensor in (*inputs, *outputs)}
    spans = {name: span_of(regions, given) for name, given in places.items()}
    for tensor in inputs:  # where two overlap, the last one lies there
        span = spans[tensor.name]
        if span is not None:
            before[span[0] : span[1]] = raw(tensor)[: span[1] - span[0]].ljust(span[1] - span[0], b"\0")
    os.pwrite(descriptor, before, 0)
    expected = {tensor.name: _content(before, spans[tensor.name], tensor) for tensor in inputs}
    sound = all(spans.values()) and None not in expected.values()
    try:
        request, plan = codec.read(inputs, outputs, places, resolver(regions))
    except TpyError as error:
        chance.took("input refused")
        if sound or not error.message:
            raise Violation(f"{inputs} and {outputs} at {places} were refused: {error.message!r}") from None
        _require(descriptor, bytes(before), "a refused request")
        return
    if not sound:
        raise Violation(
            f"{inputs} and {outputs} at {places} were read, with regions {[region.facts for region in regions.values()]}"
        )
    chance.took("input read")
    os.pwrite(descriptor, bytes(SEGMENT_BYTES), 0)
    for tensor in request.inputs:
        if raw(tensor) != expected[tensor.name]:
            raise Violation(f"{tensor.name} is {raw(tensor)!r}, expected {expected[tensor.name]!r}")
    made, fits, after = _made(chance, outputs, spans)
    response = InferenceResponse(model_name="m", model_version=1, id="", outputs=made)
    try:
        codec.answer(response, plan, description_of([*inputs, *outputs]))
    except TpyError as error:
        chance.took("output refused")
        if fits or not error.message:
            raise Violation(f"outputs were refused: {error.message!r}") from None
    else:
        chance.took("outputs written")
        if not fits:
            raise Violation(f"an output larger than its place was written: {made}")
    _require(descriptor, after, "the outputs")


def _made(chance: Chance, outputs: list[Tensor], spans: dict[str, Any]) -> tuple[tuple[Tensor, ...], bool, bytes]:
    """Makes outputs, which may be others than the request expected. Returns them, true if they fit their places, and the
    bytes of the segment afterwards."""
    after = bytearray(SEGMENT_BYTES)
    written: set[int] = set()
    made, fits = [], True
    for tensor in outputs:
        begin, end = spans[tensor.name]
        other = tensor if chance.random() < 0.7 else random_tensor(chance, tensor.name)
        made.append(other)
        data = raw(other)
        fits = fits and len(data) <= end - begin
        if fits:
            after[begin : begin + len(data)] = data
            place_of = set(range(begin, begin + len(data)))
            if written & place_of:
                chance.took("outputs overlap")
            written |= place_of
    if any(span is not None and written & set(range(*span)) for name, span in spans.items() if name.startswith("IN")):
        chance.took("input is output")
    return tuple(made), fits, bytes(after)


def _content(memory: bytearray, span: tuple[int, int] | None, tensor: Tensor) -> bytes | None:
    """The bytes of an input; None when they are not a tensor of this type and shape."""
    if span is None:
        return None
    data = bytes(memory[span[0] : span[1]])
    if tensor.datatype is DataType.BOOL:
        data = bytes(map(bool, data))  # what numpy would not know is true
    if tensor.datatype is not DataType.BYTES:
        return data if len(data) == tensor.array.nbytes else None
    at = count = 0
    while at + 4 <= len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "little")
        count += 1
    return data if at == len(data) and count == tensor.array.size else None


def _require(descriptor: int, expected: bytes, of_what: str) -> None:
    found = os.pread(descriptor, SEGMENT_BYTES, 0)
    if found != expected:
        at = [place for place in range(SEGMENT_BYTES) if found[place] != expected[place]]
        raise Violation(f"{of_what}: bytes {at} of the segment are wrong")

"""Outputs in shared memory regions that overlap."""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec
import numpy as np
import pytest

from fuzz.http.regions import SEGMENT_BYTES, segment
from fuzz.tensors import description_of
from tpy.devices import Devices
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy.frontends.http.codec import encode_infer, parse_infer
from tpy.frontends.shared_memory import LongCopy, RegionRange, TensorResolver, read_region
from tpy.messages import DataType, InferenceRequest, InferenceResponse, RegionFacts, RegionKind, Residency, Tensor
from tpy.regions import DeviceRegion, Region, RegionCopies, SegmentRegion
from tpy.testing import FakeDevice
from tpy.units import MIB


def asked(*outputs: tuple[str, int, int]) -> tuple[bytes, str]:
    """The beginning of a segment after an answer with these outputs (name, offset, size) of four bytes each, and the error."""
    descriptor = segment()
    facts = RegionFacts(name="r", kind=RegionKind.SYSTEM, key="/k", offset=0, byte_size=SEGMENT_BYTES)
    regions: dict[str, Region] = {"r": SegmentRegion(facts, descriptor, RegionCopies())}
    tensors = [Tensor(name, DataType.UINT8, np.full(4, ord(name), np.uint8)) for name, _, _ in outputs]
    places = [
        {"shared_memory_region": "r", "shared_memory_offset": offset, "shared_memory_byte_size": size}
        for _, offset, size in outputs
    ]
    document = {
        "inputs": [{"name": "I", "datatype": "UINT8", "shape": [1], "data": [1]}],
        "outputs": [{"name": tensor.name, "parameters": place} for tensor, place in zip(tensors, places, strict=True)],
    }
    description = description_of([Tensor("I", DataType.UINT8, np.zeros(1, np.uint8)), *tensors])
    _, plan = parse_infer(
        json.dumps(document).encode(),
        header_length=None,
        description=description,
        version=None,
        received_ns=0,
        tensors=TensorResolver(regions),
    )
    error = ""
    try:
        encode_infer(InferenceResponse(model_name="m", model_version=1, id="", outputs=tuple(tensors)), plan, description)
    except Internal as refused:
        error = refused.message
    return os.pread(descriptor, 12, 0), error


@pytest.mark.parametrize(
    ("outputs", "found"),
    [
        ((("A", 0, 4), ("B", 4, 4)), b"AAAABBBB\0\0\0\0"),
        ((("A", 0, 4), ("B", 2, 4)), b"AABBBB\0\0\0\0\0\0"),
        ((("A", 2, 4), ("B", 0, 4)), b"BBBBAA\0\0\0\0\0\0"),
        ((("A", 4, 4), ("B", 4, 4)), b"\0\0\0\0BBBB\0\0\0\0"),
        ((("A", 0, 12), ("B", 2, 4)), b"AABBBB\0\0\0\0\0\0"),
    ],
)
def test_the_later_output_lies_over_the_earlier_one(outputs: tuple[tuple[str, int, int], ...], found: bytes) -> None:
    assert asked(*outputs) == (found, "")


def test_an_output_that_does_not_fit_writes_nothing_over_another() -> None:
    found, error = asked(("A", 0, 4), ("B", 2, 3))
    assert found == b"AAAA" + bytes(8)
    assert "(3 bytes) should be at least 4 bytes to hold the results" in error


class Segment:
    """A region of 4 MiB that is full of sevens."""

    def __init__(self, capacity: int = 64 * MIB) -> None:
        descriptor = os.memfd_create("region")
        os.pwrite(descriptor, bytes([7]) * 4 * MIB, 0)
        facts = RegionFacts(name="r", kind=RegionKind.SYSTEM, key="/k", offset=0, byte_size=4 * MIB)
        self.copies = RegionCopies(capacity)
        self.region = SegmentRegion(facts, descriptor, self.copies)

    def read(self, elements: int, datatype: DataType = DataType.UINT8, *, copies_inputs: bool = True) -> Any:
        """The array of a request that names so many bytes from 1 MiB on."""
        place = {"shared_memory_region": "r", "shared_memory_offset": MIB, "shared_memory_byte_size": elements}
        given = Tensor("I", datatype, np.zeros(elements, datatype.numpy))
        tensor = {"name": "I", "datatype": datatype.value, "shape": [elements], "parameters": place}
        request, _ = parse_infer(
            json.dumps({"inputs": [tensor]}).encode(),
            header_length=None,
            description=msgspec.structs.replace(description_of([given]), copies_inputs=copies_inputs),
            version=None,
            received_ns=0,
            tensors=TensorResolver({"r": self.region}),
        )
        return request.inputs[0].array


@pytest.mark.parametrize(
    ("copies_inputs", "elements", "is_read"), [(False, 2 * MIB, True), (True, 2 * MIB, False), (True, 8, True)]
)
def test_large_inputs_are_left_to_instances_that_copy_them(*, copies_inputs: bool, elements: int, is_read: bool) -> None:
    segment = Segment()
    found = segment.read(elements, copies_inputs=copies_inputs)
    assert isinstance(found, np.ndarray) is is_read
    array = found if isinstance(found, np.ndarray) else found.to_host()
    assert array.shape == (elements,)
    assert np.all(array == 7)


def test_what_is_left_counts_until_it_is_forgotten() -> None:
    segment = Segment(capacity=5 * MIB)
    found = segment.read(2 * MIB)
    rows = found.reshape(2, MIB)[1:]
    also = segment.read(2 * MIB)
    assert segment.copies.held_bytes == 4 * MIB
    del found
    with pytest.raises(Unavailable, match=f"holds {4 * MIB} bytes of tensors from shared memory regions"):
        segment.read(2 * MIB)
    del rows
    again = segment.read(2 * MIB)
    assert again.nbytes == also.nbytes
    del again, also
    assert segment.copies.held_bytes == 0


def test_booleans_are_mended_whatever_their_number() -> None:
    found = Segment().read(2 * MIB, DataType.BOOL)
    assert isinstance(found, np.ndarray)
    assert set(found.view(np.uint8).tolist()) == {1}


@pytest.mark.parametrize(
    ("shape", "datatype", "gpus", "is_left"),
    [
        ([4], DataType.UINT8, (0,), True),
        ([4], DataType.UINT8, (1,), False),
        ([4], DataType.BOOL, (0,), False),
        ([0], DataType.UINT8, (0,), False),
    ],
)
def test_an_input_stays_in_a_gpus_memory_for_a_model_there(
    shape: list[int], datatype: DataType, gpus: tuple[int, ...], *, is_left: bool
) -> None:
    device = FakeDevice(0)
    facts = RegionFacts(name="r", kind=RegionKind.CUDA, key="", offset=0, byte_size=64, device_id=0)
    regions: dict[str, Region] = {"r": DeviceRegion(facts, device.allocate(64), RegionCopies(), Devices([device]))}
    place = {"shared_memory_region": "r", "shared_memory_offset": 0, "shared_memory_byte_size": shape[0]}
    given = {"name": "I", "datatype": datatype.value, "shape": shape, "parameters": place}
    description = description_of([Tensor("I", datatype, np.zeros(4, datatype.numpy))])

    def parsed(*, inline: bool) -> InferenceRequest:
        request, _ = parse_infer(
            json.dumps(
                {"inputs": [given], "outputs": [{"name": "O", "parameters": {**place, "shared_memory_byte_size": 4}}]}
            ).encode(),
            header_length=None,
            description=msgspec.structs.replace(description, gpus=gpus),
            version=None,
            received_ns=0,
            tensors=TensorResolver(regions, inline=inline),
        )
        return request

    request = parsed(inline=False)
    assert request.residency == Residency(is_left, frozenset({"O"}))
    assert isinstance(request.inputs[0].array, np.ndarray) is not is_left
    if is_left:
        assert parsed(inline=True).inputs[0].array.shape == (4,)
    else:
        with pytest.raises(LongCopy):
            parsed(inline=True)


def test_a_shape_that_no_array_has_is_refused_before_a_model_sees_it() -> None:
    device = FakeDevice(0)
    facts = RegionFacts(name="r", kind=RegionKind.CUDA, key="", offset=0, byte_size=64, device_id=0)
    found = RegionRange(DeviceRegion(facts, device.allocate(64), RegionCopies(), Devices([device])), 0, 0, inline=False)
    description = msgspec.structs.replace(description_of([Tensor("I", DataType.UINT8, np.zeros(1, np.uint8))]), gpus=(0,))
    with pytest.raises(InvalidArgument):
        read_region(found, DataType.UINT8, (0, 2**62, 2**62), tensor="I", description=description, prefix="")

"""Receiver: the protocol's side of a wire, which takes the bytes that arrive."""

from __future__ import annotations

from typing import Protocol

from tpy.demand import Demand
from tpy.units import KIB


class Receiver(Protocol):
    """Takes the bytes of a wire, synchronously, on the Trio thread. An exception is a bug, and ends the connection."""

    receive_bytes_max: int
    """Bytes to read at once."""

    def get_buffer(self) -> memoryview | None:
        """Returns the buffer for the next bytes, at least one; None: `data_received` gets them as a new object."""
        ...

    def buffer_updated(self, count: int) -> Demand:
        """`count` bytes were written to the beginning of the buffer; 0: the peer has finished sending."""
        ...

    def data_received(self, data: bytes) -> Demand:
        """These bytes have arrived; none: the peer has finished sending, and nothing else is called any more."""
        ...

    def proceed(self) -> Demand:
        """Called in a later turn of the loop after `Demand.CONTINUE`."""
        ...


class Discarding:
    """A receiver for bytes that nobody wants."""

    receive_bytes_max = 64 * KIB

    def get_buffer(self) -> None:
        return None

    def buffer_updated(self, count: int) -> Demand:
        return Demand.READ

    def data_received(self, data: bytes) -> Demand:
        return Demand.READ

    def proceed(self) -> Demand:
        return Demand.READ

"""pb_utils.Tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..wire.core import datatypes
from ..wire.core.datatypes import DeviceBuffer
from .arguments import as_text
from .failures import TritonModelException


class Tensor:
    """A named array. Arrays that are not contiguous are copied; others are kept as they are given."""

    __slots__ = ("_array", "_name", "_number")

    def __init__(self, name: str, array: np.ndarray[Any, Any]) -> None:
        text = name if type(name) is str else as_text(name)
        if text is None or not isinstance(array, np.ndarray):
            raise TypeError(
                f"Tensor(name: str, array: numpy.ndarray): incompatible constructor arguments. Invoked with: {name!r}, {array!r}"
            )
        name = text
        _check_name(name)
        number = datatypes.number_of(array.dtype)
        if number is None:
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = name
        self._number = number
        plain = array if type(array) is np.ndarray else np.asarray(array)  # a masked array's mask says nothing to a server
        contiguous = plain if plain.flags.c_contiguous else np.ascontiguousarray(plain)
        self._array: Any = contiguous.view(np.uint16) if number == datatypes.BF16 else contiguous

    def name(self) -> str:
        """The name."""
        return self._name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """The array; BYTES as an object array of bytes. BF16 has no numpy type and raises TritonModelException."""
        if type(self._array) is DeviceBuffer:
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        if self._number == datatypes.BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        array: np.ndarray[Any, Any] = self._array
        return array

    def triton_dtype(self) -> int:
        """The type's number in the model configuration; see triton_to_numpy_type."""
        return self._number

    def shape(self) -> list[int]:
        """The extents."""
        return list(self._array.shape)

    def is_cpu(self) -> bool:
        """Returns True if it is in host memory."""
        return type(self._array) is not DeviceBuffer

    def to_dlpack(self) -> Any:
        """A DLPack capsule over the tensor's memory."""
        from . import dlpack

        if type(self._array) is DeviceBuffer:
            return dlpack.device_capsule(self._array, self._number)
        return dlpack.to_capsule(self._array, self._number)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """As the array API standard has it. Nothing has to be waited for, whatever the stream, as tensors are complete; None and
        -1 are taken for host memory, which has no streams. Raises BufferError for another device, for a copy of what is on a
        device, and where `copy` is False and the consumer cannot be told that the memory may not be written."""
        from . import dlpack

        dlpack.require(self.__dlpack_device__(), dl_device, stream)
        if type(self._array) is DeviceBuffer:
            if copy:
                raise BufferError("a tensor on a device is not copied there: copy it yourself")
            return dlpack.device_capsule(self._array, self._number)
        return dlpack.to_capsule(self._array, self._number, copy=copy, max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        from . import dlpack

        array = self._array
        return (dlpack.CUDA, array.device_id) if type(array) is DeviceBuffer else (dlpack.CPU, 0)

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """A tensor over the memory of a DLPack capsule or of anything with `__dlpack__`. No copy."""
        from . import dlpack

        text = as_text(name)
        if text is None:
            raise TypeError(f"from_dlpack(name: str, tensor: object): incompatible function arguments. Invoked with: {name!r}")
        name = text
        _check_name(name)
        array, number = dlpack.from_object(tensor)
        return wrap(name, number, array)


def wrap(name: str, number: int, array: Any) -> Tensor:
    """A Tensor over an array in the storage form of its type (`Connection.read`), unchecked."""
    tensor = Tensor.__new__(Tensor)
    tensor._name = name
    tensor._number = number
    tensor._array = array
    return tensor


def storage_of(tensor: Tensor) -> tuple[str, int, Any]:
    """Name, type number and storage array of a Tensor."""
    return tensor._name, tensor._number, tensor._array


def _check_name(name: str) -> None:
    if not name:
        raise TritonModelException("Tensor name cannot be an empty string.")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise TritonModelException(f"Tensor name {name!a} is not valid Unicode.") from None

"""Memory of devices: what a tensor lies in that stays on a GPU.

device.py       Device: allocates, copies, shares memory of one GPU with other processes. Two implementations: cuda.py, over the
                driver's own library, and tpy.testing.FakeDevice, over host memory
array.py        DeviceArray: the `array` of a tensor that is on a device; ArrayReference: of any that is somewhere else
pools.py        bounded pools of pinned and of device memory, with Triton's fallbacks (core/ranges.py: which range is free)
devices.py      Devices: those of one server, with their pools

All of it may be used in any thread. Whatever takes or gives an array may touch it at once: whoever gives one away has waited for
his stream.
"""

from tpy.devices.array import Array, ArrayReference, DeviceArray
from tpy.devices.device import Bytes, Device, DeviceMemory, Graph, IpcAddress, Stream
from tpy.devices.devices import NO_DEVICES, PINNED_POOL_BYTES_DEFAULT, Devices
from tpy.devices.pools import PinnedPool

__all__ = [
    "NO_DEVICES",
    "PINNED_POOL_BYTES_DEFAULT",
    "Array",
    "ArrayReference",
    "Bytes",
    "Device",
    "DeviceArray",
    "DeviceMemory",
    "Devices",
    "Graph",
    "IpcAddress",
    "PinnedPool",
    "Stream",
]

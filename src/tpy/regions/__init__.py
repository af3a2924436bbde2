"""Shared memory that clients made and registered: tensors in it do not travel in messages.

region.py       Region: read and written by copies; SegmentRegion: a range of a segment
array.py        RegionArray: an array that is read when it is put where a model sees it
device_region.py DeviceRegion: in the memory of a GPU
maps.py         large copies through a map, under a guard
segments.py     opens a segment by the key that a client names
copies.py       bounds the memory that copies out of regions take
registry.py     RegionRegistry: the regions of one server, and who may register them

Tensors are copied out of regions and into them, never used where they are: whoever made a segment can write into it or make it
shorter at any moment. A model reads what does not change, and a segment that is gone is an error of the request that uses it.
"""

from tpy.regions.array import CountedRegion, RegionArray
from tpy.regions.copies import Bytes, RegionCopies
from tpy.regions.device_region import DeviceRegion
from tpy.regions.region import Region, SegmentRegion
from tpy.regions.registry import DISABLED, RegionRegistry, registered
from tpy.regions.segments import reopen_segment

__all__ = [
    "DISABLED",
    "Bytes",
    "CountedRegion",
    "DeviceRegion",
    "Region",
    "RegionArray",
    "RegionCopies",
    "RegionRegistry",
    "SegmentRegion",
    "registered",
    "reopen_segment",
]

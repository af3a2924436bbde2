"""Shared memory that clients made and registered: tensors in it do not travel in messages.

region.py       Region: read and written by copies; SegmentRegion: a range of a segment; the bound of what copies take
array.py        RegionArray: an array that is read when it is put where a model sees it
maps.py         large copies through a map, under a guard
segments.py     opens a segment by the key that a client names
registry.py     RegionRegistry: the regions of one server, and who may register them; DeviceRegion: in the memory of a GPU

Tensors are copied out of regions and into them, never used where they are: whoever made a segment can write into it or make it
shorter at any moment. A model reads what does not change, and a segment that is gone is an error of the request that uses it.
"""

from tpy.regions.array import CountedRegion, RegionArray
from tpy.regions.region import Bytes, Region, RegionCopies, SegmentRegion
from tpy.regions.registry import DISABLED, DeviceRegion, RegionRegistry, registered
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

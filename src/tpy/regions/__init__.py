"""Shared memory that clients made and registered: tensors in it do not travel in messages.

region.py       Region: a range of a segment, read and written by copies
segments.py     opens a segment by the key that a client names
copies.py       bounds the memory that copies out of regions take
registry.py     RegionRegistry: the regions of one server, and who may register them

A region is never mapped: whoever made its segment can make it shorter at any moment, and the signal (SIGBUS) that reading a map
raises then ends a process. Copies by system calls fail with an error instead. What a model reads can also not change under it.
"""

from tpy.regions.copies import RegionCopies
from tpy.regions.region import Region
from tpy.regions.registry import DISABLED, RegionRegistry, registered
from tpy.regions.segments import reopen_segment

__all__ = ["DISABLED", "Region", "RegionCopies", "RegionRegistry", "registered", "reopen_segment"]

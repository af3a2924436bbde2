"""For authors of backends, and for our own tests: requests, hosts, a fake backend, and the conformance suite.

`tpy.testing.conformance` is the suite that every backend passes; it needs pytest, nothing else here does. The server itself
imports none of this.
"""

from tpy.testing.fake_backend import FakeBackend
from tpy.testing.fake_device import FakeDevice
from tpy.testing.hosting import HostedInstance, HostedModel
from tpy.testing.requests import RecordingSender, SampleRequest, batch_of, request_of

__all__ = [
    "FakeBackend",
    "FakeDevice",
    "HostedInstance",
    "HostedModel",
    "RecordingSender",
    "SampleRequest",
    "batch_of",
    "request_of",
]

"""tritony as a program of its own: run by the Python that has tritony. Arguments: HTTP and gRPC address."""

import asyncio
import sys

import numpy as np
from tritony import InferenceClient
from tritony.helpers import TritonProtocol

http, grpc = sys.argv[1:]
rows = np.arange(20 * 16, dtype=np.float32).reshape(20, 16)
for protocol, url in ((TritonProtocol.http, http), (TritonProtocol.grpc, grpc)):
    client = InferenceClient.create_with("affine", url, input_dims=2, protocol=protocol)
    assert np.array_equal(client(rows), 2 * rows), protocol
    strings = InferenceClient.create_with("simple_identity", url, input_dims=2, protocol=protocol)
    assert strings(np.array([[b"one", b"two"]], dtype=object)).tolist() == [[b"one", b"two"]]
# Its synchronous form has no HTTP, and without a compression asks for one named "None" (0.0.23).
client = InferenceClient.create_with(
    "affine", grpc, input_dims=2, protocol=TritonProtocol.grpc, run_async=False, compression_algorithm="gzip"
)
assert np.array_equal(client(rows), 2 * rows)


async def over_asyncio() -> None:
    """The asyncio client."""
    client = InferenceClient.create_with_asyncio("affine", grpc, input_dims=2, protocol=TritonProtocol.grpc)
    assert np.array_equal(await client.aio_infer(rows[:8]), 2 * rows[:8])
    await client.async_close()


asyncio.run(over_asyncio())
print("PASS: tritony")

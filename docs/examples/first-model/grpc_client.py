"""The same as client.py over gRPC. Use: python grpc_client.py HOST:PORT"""

import sys

import numpy as np
import tritonclient.grpc as triton

client = triton.InferenceServerClient(sys.argv[1])

a = triton.InferInput("INPUT0", [1, 16], "INT32")
a.set_data_from_numpy(np.arange(16, dtype=np.int32).reshape(1, 16))
b = triton.InferInput("INPUT1", [1, 16], "INT32")
b.set_data_from_numpy(np.ones((1, 16), dtype=np.int32))

result = client.infer("simple", [a, b], client_timeout=10)
print("sum:       ", *result.as_numpy("OUTPUT0")[0])
print("difference:", *result.as_numpy("OUTPUT1")[0])
client.close()

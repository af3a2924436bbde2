"""Ask the model `simple` for the sum and the difference of two rows of numbers. Use: python client.py HOST:PORT"""

import sys

import numpy as np
import tritonclient.http as triton

url = sys.argv[1]
client = triton.InferenceServerClient(url)

a = triton.InferInput("INPUT0", [1, 16], "INT32")
a.set_data_from_numpy(np.arange(16, dtype=np.int32).reshape(1, 16))
b = triton.InferInput("INPUT1", [1, 16], "INT32")
b.set_data_from_numpy(np.ones((1, 16), dtype=np.int32))

result = client.infer("simple", [a, b])
print("sum:       ", *result.as_numpy("OUTPUT0")[0])
print("difference:", *result.as_numpy("OUTPUT1")[0])
client.close()

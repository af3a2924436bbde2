"""Watch a text being written, over a gRPC stream. Use: python client.py HOST:PORT TEXT [COUNT [SEED [PER_SECOND]]]"""

import queue
import sys

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput

address, text, *numbers = sys.argv[1:]
options = dict(zip(("count", "seed", "per_second"), map(int, numbers), strict=False))
tensor = InferInput("TEXT", [1], "BYTES")
tensor.set_data_from_numpy(np.array([text.encode()], dtype=object))

answers = queue.SimpleQueue()
with InferenceServerClient(address) as client:
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    client.async_stream_infer("words", [tensor], parameters=options, enable_empty_final_response=True)
    print(text, end="", flush=True)
    while True:
        result, error = answers.get(timeout=60)
        if error is not None:
            raise error
        if result.get_response().parameters["triton_final_response"].bool_param:
            break
        print("", result.as_numpy("WORD")[0].decode(), end="", flush=True)
    print()

"""Stream an answer by the stock client of Triton: python docs/examples/chat/client.py localhost:8001 'Once upon a time'"""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc


def given(name: str, value: bytes | bool) -> tritonclient.grpc.InferInput:
    tensor = tritonclient.grpc.InferInput(name, [1], "BOOL" if isinstance(value, bool) else "BYTES")
    tensor.set_data_from_numpy(np.array([value], bool if isinstance(value, bool) else object))
    return tensor


answers: queue.Queue[Any] = queue.Queue()
sampling = json.dumps({"temperature": 0, "max_tokens": 40}).encode()
inputs = [given("text_input", sys.argv[2].encode()), given("stream", True), given("sampling_parameters", sampling)]
with tritonclient.grpc.InferenceServerClient(sys.argv[1]) as client:
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("chat", inputs, enable_empty_final_response=True)
    final = False
    while not final:
        result, error = answers.get()
        if error is not None:
            raise SystemExit(str(error))
        text = result.as_numpy("text_output")
        print("" if text is None else text[0].decode(), end="", flush=True)
        final = result.get_response().parameters["triton_final_response"].bool_param
    client.stop_stream()
print()

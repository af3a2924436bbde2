"""Ask for the averages of several texts of different lengths at the same time. Use: python averages.py HOST:PORT"""

import sys

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput

TEXTS = [[1, 2, 3], [5], [4, 4, 6, 9, 2]]


def tokens_of(text: list[int]) -> InferInput:
    tensor = InferInput("TOKENS", [1, len(text)], "INT64")
    tensor.set_data_from_numpy(np.array([text], dtype=np.int64))
    return tensor


client = InferenceServerClient(sys.argv[1], concurrency=len(TEXTS))
pending = [client.async_infer("averages", [tokens_of(text)]) for text in TEXTS]
for text, answer in zip(TEXTS, pending, strict=True):
    result = answer.get_result()
    print(text, result.as_numpy("VECTORS").shape, result.as_numpy("AVERAGE").tolist())
found = client.get_inference_statistics("averages")["model_stats"][0]
print(f"{found['inference_count']} requests, {found['execution_count']} executions")
client.close()

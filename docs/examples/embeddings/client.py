"""Finds the text that is closest in meaning to a question. Use: python client.py HOST:PORT QUESTION TEXT..."""

import sys

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput

address, *texts = sys.argv[1:]
tensor = InferInput("TEXT", [len(texts), 1], "BYTES")
tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=object))
with InferenceServerClient(address) as client:
    question, *others = client.infer("embed", [tensor]).as_numpy("EMBEDDING")
for cosine, text in sorted(zip(np.array(others) @ question, texts[1:], strict=True), reverse=True):
    print(f"{cosine:5.2f}  {text}")

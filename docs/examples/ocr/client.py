"""Read a page. Use: python client.py HOST:PORT FILE"""

import sys
from pathlib import Path

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput

address, file = sys.argv[1:]
image = InferInput("IMAGE", [1], "BYTES")
image.set_data_from_numpy(np.array([Path(file).read_bytes()], dtype=object))
with InferenceServerClient(address) as client:
    answer = client.infer("ocr", [image])
for text, score, box in zip(*(answer.as_numpy(name) for name in ("TEXT", "SCORE", "BOX")), strict=True):
    print(f"{score:4.0%}  at {box[:2].round().astype(int)}  {text.decode()}")

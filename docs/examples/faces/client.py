"""Finds the faces on a picture. Use: python client.py HOST:PORT FILE [MODEL], where MODEL is faces or faces_async"""

import sys
from pathlib import Path

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput

address, file, model = [*sys.argv[1:], "faces"][:3]
image = InferInput("IMAGE", [1], "BYTES")
image.set_data_from_numpy(np.array([Path(file).read_bytes()], dtype=object))
with InferenceServerClient(address) as client:
    answer = client.infer(model, [image])
for box, score in zip(answer.as_numpy("BOX"), answer.as_numpy("SCORE"), strict=True):
    print(f"from {box[:2].round().astype(int)} to {box[2:].round().astype(int)}, {score:.0%} sure")

"""Sends a picture to a model and gets one back, without a byte of them in a message. Use: client.py [HOST:PORT]"""

import sys

import numpy as np
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm

picture = np.full((1080, 1920, 3), 200, np.uint8)
client = triton.InferenceServerClient(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")

segments = {}
for name in ("given", "wanted"):
    segments[name] = shm.create_shared_memory_region(name, f"/example_{name}", picture.nbytes)
    client.register_system_shared_memory(name, f"/example_{name}", picture.nbytes)

given = triton.InferInput("IMAGE", picture.shape, "UINT8")
given.set_shared_memory("given", picture.nbytes)
wanted = triton.InferRequestedOutput("DARKER")
wanted.set_shared_memory("wanted", picture.nbytes)

for brightness in (200, 100, 50):
    shm.set_shared_memory_region(segments["given"], [np.full_like(picture, brightness)])
    client.infer("darker", [given], outputs=[wanted])
    darker = shm.get_contents_as_numpy(segments["wanted"], np.uint8, picture.shape)
    print(brightness, "->", darker.mean())

for name, segment in segments.items():
    client.unregister_system_shared_memory(name)
    shm.destroy_shared_memory_region(segment)

"""Send requests of two priorities to the model `queued`, and say in which order they end. Use: python priorities.py HOST:PORT"""

import sys
import threading
import time

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException


def send(name: str, priority: int) -> None:
    client = InferenceServerClient(sys.argv[1])
    tensor = InferInput("INPUT0", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 2), dtype=np.float32))
    try:
        client.infer("queued", [tensor], priority=priority)
        print(name, "answered")
    except InferenceServerException as error:
        print(name, "refused:", error.message())


requests = [("first", 0), ("low 1", 2), ("low 2", 2), ("low 3", 2), ("high", 1)]
threads = [threading.Thread(target=send, args=request) for request in requests]
for thread in threads:
    thread.start()
    time.sleep(0.05)  # so that they arrive in this order
for thread in threads:
    thread.join()

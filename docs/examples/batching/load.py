"""Keep a model busy with some clients at a time, and say how its requests were batched.

Use: python load.py HOST:PORT MODEL CLIENTS SECONDS
"""

import sys
import threading
import time

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput

url, model, clients, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])


def ask_until(end: float) -> None:
    client = InferenceServerClient(url)
    tensor = InferInput("INPUT0", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 2), dtype=np.float32))
    while time.monotonic() < end:
        client.infer(model, [tensor])
    client.close()


def totals() -> np.ndarray:
    """Rows, executions, nanoseconds in the queue, nanoseconds altogether."""
    client = InferenceServerClient(url)
    found = client.get_inference_statistics(model)["model_stats"][0]
    stats = found["inference_stats"]
    client.close()
    return np.array([found["inference_count"], found["execution_count"], stats["queue"]["ns"], stats["success"]["ns"]])


before = totals()
threads = [threading.Thread(target=ask_until, args=[time.monotonic() + seconds]) for _ in range(clients)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
rows, executions, queue_ns, all_ns = totals() - before
print(f"{rows / seconds:.0f} rows/s, {rows / executions:.1f} rows per execution")
print(f"{all_ns / rows / 1e6:.1f} ms per request, {queue_ns / rows / 1e6:.1f} ms of it in the queue")

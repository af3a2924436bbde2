"""The loop that the server is compared with: pictures from host memory to the device, through the network, and back, one batch
after the other. `python -m benchmarks.gpu.loop MODEL BATCH SIDE SECONDS DEVICE HALF` prints the pictures per second."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.load.child import run_child

_WARM_UP_RUNS = 5


def drive(model: Path, *, batch: int, side: int, seconds: float, device: str, half: bool) -> float:
    """Returns pictures per second. Raises LoadFailed."""
    arguments = [str(model), str(batch), str(side), str(seconds), device, str(int(half))]
    text, _ = run_child([sys.executable, "-m", "benchmarks.gpu.loop", *arguments])
    return float(text.split()[-1])


def _main(model: str, batch: int, side: int, seconds: float, device: str, half: bool) -> float:
    import torch

    network = torch.jit.load(model, map_location=device).eval()
    pictures = torch.rand(batch, 3, side, side).to(torch.float16 if half else torch.float32)
    if device != "cpu":
        pictures = pictures.pin_memory()
    with torch.inference_mode():
        for _ in range(_WARM_UP_RUNS):
            network(pictures.to(device)).cpu()
        runs, begin_s = 0, time.perf_counter()
        while (passed_s := time.perf_counter() - begin_s) < seconds:
            network(pictures.to(device, non_blocking=True)).cpu()  # waits
            runs += 1
    return runs * batch / passed_s


if __name__ == "__main__":
    given = sys.argv
    print(_main(given[1], int(given[2]), int(given[3]), float(given[4]), given[5], given[6] == "1"))

"""A network of ResNet-50's size, with random weights, as TorchScript: built here, so that nothing has to be fetched."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn


class _Bottleneck(nn.Module):
    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        made = width * 4
        self.body = nn.Sequential(
            *_convolution(given, width, 1, 1),
            nn.ReLU(),
            *_convolution(width, width, 3, stride),
            nn.ReLU(),
            *_convolution(width, made, 1, 1),
        )
        self.short = nn.Sequential(*_convolution(given, made, 1, stride)) if stride > 1 or given != made else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


def _convolution(given: int, made: int, size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(given, made, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(made)


class ResNet(nn.Module):
    """ResNet-50 with `blocks` (3, 4, 6, 3) and `width` 64: 25.6 million weights."""

    def __init__(self, blocks: tuple[int, ...], width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        given = width
        for stage, count in enumerate(blocks):
            for index in range(count):
                layers.append(_Bottleneck(given, width << stage, 2 if stage and not index else 1))
                given = (width << stage) * 4
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(given, 1000)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image).mean((2, 3)))


def save(path: Path, *, blocks: tuple[int, ...], width: int, side: int, half: bool, device: str) -> None:
    """Write the traced network, for pictures of `side` x `side`."""
    torch.manual_seed(0)
    dtype = torch.float16 if half else torch.float32
    network = ResNet(blocks, width).eval().to(device=device, dtype=dtype)
    with torch.inference_mode():
        traced = torch.jit.trace(network, torch.zeros(2, 3, side, side, dtype=dtype, device=device))
    path.parent.mkdir(parents=True, exist_ok=True)
    traced.save(str(path))

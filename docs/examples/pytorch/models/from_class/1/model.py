"""EfficientNet-Lite0 (Google, Apache-2.0) as a class. Its attributes have the names of the weights' file."""

import torch
from torch import nn
from torch.nn import functional

STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
"""Kernel size, stride of the first block, expansion of channels, channels, number of blocks."""


class SameConv(nn.Conv2d):
    """A convolution whose output has the size of its input divided by the stride: zeros around it, one more at the end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, stride, kernel = x.shape[2], self.stride[0], self.kernel_size[0]
        missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        first, last = missing // 2, missing - missing // 2
        return super().forward(functional.pad(x, (first, last, first, last)))


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> SameConv:
    return SameConv(inputs, outputs, kernel, stride, groups=groups, bias=False)


class Block(nn.Module):
    """Widens, filters each channel, narrows; adds its input where the shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expands, self.adds = expansion > 1, stride == 1 and inputs == outputs
        if self.expands:
            self._expand_conv, self._bn0 = conv(inputs, wide, 1), nn.BatchNorm2d(wide, eps=1e-3)
        self._depthwise_conv, self._bn1 = conv(wide, wide, kernel, stride, groups=wide), nn.BatchNorm2d(wide, eps=1e-3)
        self._project_conv, self._bn2 = conv(wide, outputs, 1), nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = functional.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return y + x if self.adds else y


class EfficientNetLite0(nn.Module):
    """RGB pictures, (value - 127) / 128, [N,3,224,224] -> probabilities of 1000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = conv(3, 32, 3, stride=2), nn.BatchNorm2d(32, eps=1e-3)
        blocks, inputs = [], 32
        for kernel, stride, expansion, outputs, count in STAGES:
            for repeat in range(count):
                blocks.append(Block(inputs, outputs, kernel, stride if repeat == 0 else 1, expansion))
                inputs = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = conv(320, 1280, 1), nn.BatchNorm2d(1280, eps=1e-3)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = functional.relu6(self._bn0(self._conv_stem(image)))
        for block in self._blocks:
            x = block(x)
        x = functional.relu6(self._bn1(self._conv_head(x)))
        return self._fc(x.mean((2, 3))).softmax(1)

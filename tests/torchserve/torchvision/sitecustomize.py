"""On the path of both servers: torchvision's Python half without its library, which PyPI has for another build of PyTorch only.
Transforms need no library, but importing torchvision names two of its operators."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec


class _Operators:
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            try:
                self.library = torch.library.Library("torchvision", "DEF")
                self.library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
                self.library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
                _kept.append(self)
            except RuntimeError:  # it has its library
                pass
        return None


_kept: list[_Operators] = []
sys.meta_path.insert(0, _Operators())

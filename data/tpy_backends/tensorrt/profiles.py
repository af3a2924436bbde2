"""Chooses the optimization profile of a batch: of the profiles that take it, the one whose best shapes are nearest, as Triton
does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tpy.errors import InvalidArgument
from tpy_backends.signature import shape_text
from tpy_backends.tensorrt.signature import Extent, OptimizationProfile, Shape

Shapes = Mapping[str, Shape]
"""By input: of a whole batch, or the values of shape tensors."""


def choose(profiles: Sequence[OptimizationProfile], shapes: Shapes, values: Shapes) -> OptimizationProfile | None:
    """Returns the nearest of the profiles that take this batch, the first of several; None when none does."""
    best, best_distance = None, None
    for profile in profiles:
        found = distance(profile, shapes, values)
        if found is not None and (best_distance is None or found < best_distance):
            best, best_distance = profile, found
    return best


def distance(profile: OptimizationProfile, shapes: Shapes, values: Shapes) -> int | None:
    """The sum of how far all dimensions and all values of shape tensors are from the profile's best ones; None when it does not
    take them."""
    total = 0
    for given, extents in ((shapes, profile.shapes), (values, profile.values)):
        for name, shape in given.items():
            extent = extents[name]
            if not _within(shape, extent):
                return None
            total += sum(abs(best - size) for best, size in zip(extent.best, shape, strict=True))
    return total


def refusal(model_name: str, profiles: Iterable[OptimizationProfile], shapes: Shapes, values: Shapes) -> InvalidArgument:
    """The error for a batch that no profile takes: what is wrong with the first input that does not fit, for each of them."""
    faults = [_fault(profile, shapes, values) for profile in profiles]
    name, _ = faults[0]
    what = f"{'values' if name in values else 'shape'} {shape_text(values[name] if name in values else shapes[name])}"
    reasons = "; ".join(f"profile {profile.index}: {fault}" for profile, (_, fault) in zip(profiles, faults, strict=True))
    return InvalidArgument(f"request specifies invalid {what} for input '{name}' for {model_name}. Error details: {reasons}")


def _fault(profile: OptimizationProfile, shapes: Shapes, values: Shapes) -> tuple[str, str]:
    """The first input that the profile does not take, and why, in Triton's words."""
    for given, extents, what in ((shapes, profile.shapes, "the shape of dimension"), (values, profile.values, "the shape value")):
        for name, shape in given.items():
            extent = extents[name]
            if len(shape) != len(extent.largest):
                return name, f"model expected {len(extent.largest)} dimensions but received {len(shape)} dimensions"
            for index, (least, size, most) in enumerate(zip(extent.smallest, shape, extent.largest, strict=True)):
                if not least <= size <= most:
                    return name, f"model expected {what} {index} to be between {least} and {most} but received {size}"
    return next(iter(shapes), ""), "nothing"


def _within(shape: Shape, extent: Extent) -> bool:
    return len(shape) == len(extent.largest) and all(
        least <= size <= most for least, size, most in zip(extent.smallest, shape, extent.largest, strict=True)
    )

"""The output plan of one request: decided while the request is decoded, used when its response is encoded."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy.frontends.shared_memory import RegionRange


class OutputPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`requested`: the outputs that were asked for by name. `class_counts`: those that are wanted as their best classes, and how
    many of them. `regions`: those that are written there and do not travel in the message. `empty_final`: whether the end of a
    decoupled request is to be told by a message of its own (`triton_enable_empty_final_response`)."""

    requested: tuple[str, ...] = ()
    class_counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    regions: Mapping[str, RegionRange] = msgspec.field(default_factory=dict)
    empty_final: bool = False


NO_PLAN = OutputPlan()

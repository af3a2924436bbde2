"""The plan of a rollout: how requests without a version go over to a new version of a model, as the parameter `rollout` says."""

from __future__ import annotations

import functools
from typing import Annotated, Final

import msgspec

from tpy.config.model_config import ModelConfig
from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.limits import ROLLOUT_PLAN_BYTES_MAX

PARAMETER: Final = "rollout"
"""The model parameter that has the plan, a JSON object as RolloutPlan; without it a new version gets all requests at once."""

EXAMPLE: Final = '{"steps": [{"percent": 10, "seconds": 60}]}'
"""A plan, for errors that say what is expected."""

KEYS: Final = ("correlation_id", "request_id")
"""The values of `sticky`, beside `parameter:NAME`."""

_OF_PARAMETER: Final = "parameter:"
_SHOWN_CHARACTERS_MAX: Final = 100
_Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
# Every number has a bound: a plan is counted in nanoseconds, sent between processes and written to a file.
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e8)]
_Requests = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e11)]
_Tolerance = Annotated[float, msgspec.Meta(ge=0, le=1e30)]


class RolloutStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`percent` of the requests go to the new version, for at least `seconds`."""

    percent: Annotated[float, msgspec.Meta(gt=0, le=100)]
    seconds: _Seconds = 60.0


class RolloutShadow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Before the first step, `percent` of the requests are also sent to the new version, for at least `seconds`, and its answers
    are compared with those of the old one, never sent. Numbers agree as for NumPy's `isclose`: they differ by at most `atol` and
    `rtol` times the old one; all else agrees if it is equal. Of the answers at most `max_disagreement_percent` may differ; None:
    any number of them."""

    percent: Annotated[float, msgspec.Meta(gt=0, le=100)] = 100.0
    seconds: _Seconds = 60.0
    max_disagreement_percent: _Percent | None = 1.0
    rtol: _Tolerance = 1e-3
    atol: _Tolerance = 1e-5


_STEPS: Final = (RolloutStep(1), RolloutStep(10), RolloutStep(50))


class RolloutPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The steps before the new version gets everything, and the gates that it has to pass. `shadow` comes before the steps.

    A step ends when its time is over and the new version has ended `min_requests` in it. The new version is given up as soon as
    more than `max_error_percent` of its requests have failed, of at least `min_requests`, and at the end of a step also where its
    99th percentile of latency is above `max_p99_ms`, or above that of the old version times `max_p99_ratio`; None: no such gate.

    `sticky`: requests with the same correlation id, request id or parameter (`parameter:NAME`) get the same version, "": each
    request is on its own.
    """

    steps: Annotated[tuple[RolloutStep, ...], msgspec.Meta(min_length=1, max_length=100)] = _STEPS
    max_error_percent: _Percent | None = 1.0
    max_p99_ms: _Positive | None = None
    max_p99_ratio: _Positive | None = None
    min_requests: _Requests = 100
    sticky: str = ""
    shadow: RolloutShadow | None = None

    def __post_init__(self) -> None:
        if self.sticky and self.sticky not in KEYS and not self.sticky_parameter:
            raise ValueError(
                f"sticky is '{echo(self.sticky, _SHOWN_CHARACTERS_MAX)}', expected {', '.join(KEYS)} or {_OF_PARAMETER}NAME"
            )
        shares = [step.percent for step in self.steps]
        if shares != sorted(shares):
            raise ValueError(f"the percents of the steps are {', '.join(f'{each:g}' for each in shares)}, expected them to rise")

    @property
    def sticky_parameter(self) -> str | None:
        """The name of the request parameter that `sticky` names, if it names one."""
        return self.sticky.removeprefix(_OF_PARAMETER) if self.sticky.startswith(_OF_PARAMETER) else None


_DECODER: Final = msgspec.json.Decoder(RolloutPlan)


def rollout_plan(config: ModelConfig) -> RolloutPlan | None:
    """The plan of a model, or None. Raises ValueError for an impossible plan, with the reason."""
    text = config.parameter(PARAMETER, "")
    if not text:
        return None
    plan = read_plan(text)
    check_fits(plan, config)
    return plan


def given_plan(model_name: str, text: str, config: ModelConfig) -> RolloutPlan | None:
    """The plan that came with a call; None without one. Raises InvalidArgument for an impossible one."""
    if not text:
        return None
    try:
        if (size := len(text.encode())) > ROLLOUT_PLAN_BYTES_MAX:
            raise ValueError(f"it has {size} bytes, at most {ROLLOUT_PLAN_BYTES_MAX} are allowed")
        plan = read_plan(text)
        check_fits(plan, config)
    except ValueError as error:
        raise InvalidArgument(
            f"the plan for {echo(model_name)} is not a valid rollout plan: {error}, expected a JSON object like {EXAMPLE}"
        ) from None
    return plan


def check_fits(plan: RolloutPlan, config: ModelConfig) -> None:
    """Raises ValueError, with the reason, for a plan that is not one for this model."""
    if plan.shadow is not None and (config.decoupled or config.sequence_batching is not None):
        raise ValueError("shadow compares one answer with another; this model is decoupled or has sequences")


@functools.lru_cache(maxsize=256)
def read_plan(text: str) -> RolloutPlan:
    """The plan that a JSON text says. Raises ValueError for an impossible one, with the reason, which is a line."""
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError as error:
        # msgspec repeats unknown names as they are.
        raise ValueError("".join(c if c.isprintable() else ascii(c)[1:-1] for c in echo(str(error)))) from None

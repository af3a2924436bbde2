"""The targets of TensorFlow Serving's protocol."""

from __future__ import annotations

from fuzz.target import Target
from fuzz.tensorflow_serving import tensors

READING = Target(
    name="tensorflow_serving_tensors",
    invariant=tensors.READING,
    run=tensors.run,
    smoke_examples=3000,
    attack=tensors.attack,
)
WRITING = Target(name="tensorflow_serving_answers", invariant=tensors.WRITING, run=tensors.run_answers, smoke_examples=2000)
CANARY = Target(
    name="tensorflow_serving_tensors_canary",
    invariant="a reader that does not repeat the last element is found out",
    run=tensors.run_canary,
    smoke_examples=400,
    must_fail=True,
)

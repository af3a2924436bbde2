"""The suite that every engine passes with a model that takes images. Needs pytest.

Derive a test class from `ImageConformance` and give it the fixture `subject`, as for `EngineConformance`, and the fixture
`pictured`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tpy.backend.engine import EngineRequest
from tpy.errors import InvalidArgument
from tpy.testing.engine_conformance import GREEDY, EngineFixtures, EngineUnderTest, RunningEngine


@dataclass(frozen=True, kw_only=True)
class Pictured:
    """A prompt with one place for an image, a prompt with two, and two images to which the model has different answers."""

    prompt: str
    prompt_of_two: str
    images: tuple[bytes, bytes]


class ImageConformance(EngineFixtures):
    """See the module."""

    @pytest.fixture(scope="class")
    @classmethod
    def pictured(cls) -> Pictured:
        """Prompts and images: override it."""
        raise NotImplementedError

    def test_the_answer_is_about_the_image(self, pictured: Pictured, running: RunningEngine) -> None:
        first, second = pictured.images
        texts = [text_of(running, pictured.prompt, image) for image in (first, second, first)]
        assert texts[0] != texts[1]
        assert texts[0] == texts[2]

    def test_images_are_taken_in_their_order(self, pictured: Pictured, running: RunningEngine) -> None:
        first, second = pictured.images
        texts = [text_of(running, pictured.prompt_of_two, *images) for images in ((first, second), (second, first))]
        assert texts[0] != texts[1]

    def test_an_answer_does_not_depend_on_others(
        self, subject: EngineUnderTest, pictured: Pictured, running: RunningEngine
    ) -> None:
        alone = [text_of(running, pictured.prompt, image) for image in pictured.images]
        alone.append(text_of(running, subject.prompt(0)))
        numbers = [give(running, pictured.prompt, image) for image in pictured.images]
        numbers.append(give(running, subject.prompt(0)))
        running.finish()
        assert [running.text(number) for number in numbers] == alone

    def test_several_sequences_of_one_prompt(self, pictured: Pictured, running: RunningEngine) -> None:
        image = pictured.images[0]
        number = give(running, pictured.prompt, image, n=2)
        running.finish()
        assert running.tokens(number, 0) == running.tokens(number, 1) > 0

    def test_an_image_without_a_place_is_refused_and_harms_nobody(self, pictured: Pictured, running: RunningEngine) -> None:
        number = give(running, pictured.prompt, pictured.images[0])
        with pytest.raises(InvalidArgument, match="no place for each of its 2 images"):
            give(running, pictured.prompt, *pictured.images)
        running.finish()
        assert running.text(number) == text_of(running, pictured.prompt, pictured.images[0])

    def test_what_is_cancelled_says_nothing(self, pictured: Pictured, running: RunningEngine) -> None:
        gone, kept = (give(running, pictured.prompt, image) for image in pictured.images)
        running.cancel(gone)
        running.finish()
        assert not running.deltas[gone]
        assert running.text(kept)


def give(running: RunningEngine, prompt: str, *images: bytes, n: int = 1, **sampling: Any) -> int:
    """Returns the number of the request."""
    return running.give(EngineRequest(id=0, prompt=prompt, images=images, n=n, max_tokens=8, sampling={**GREEDY, **sampling}))


def text_of(running: RunningEngine, prompt: str, *images: bytes) -> str:
    """The answer to it alone."""
    number = give(running, prompt, *images)
    running.finish()
    return running.text(number)

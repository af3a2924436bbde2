"""Classes of texts."""

from __future__ import annotations

from typing import Any

import torch

from ..handler_utils.text_utils import ngrams_iterator
from ..utils.util import map_class_to_label
from .text_handler import TextHandler


class TextClassifier(TextHandler):
    """Answers the labels of all classes with their probabilities. One text in each batch: more than that it does not look at."""

    ngrams = 2

    def preprocess(self, data: Any) -> Any:
        """The numbers of the words in the vocabulary and of their pairs, and the words."""
        text = data[0].get("data") or data[0].get("body")
        if isinstance(text, (bytes, bytearray)):
            text = text.decode()
        text = self._expand_contractions(self._remove_html_tags(text).lower())
        words = self._tokenize(self._remove_punctuation(self._remove_accented_characters(text)))
        numbers = [self.source_vocab[each] for each in ngrams_iterator(words, self.ngrams)]
        return torch.as_tensor(numbers, device=self.device), words

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return super().inference(data[0], torch.as_tensor([0], device=self.device))

    def postprocess(self, data: Any) -> Any:
        return map_class_to_label(torch.softmax(data, dim=1).tolist(), self.mapping)

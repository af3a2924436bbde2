"""The base of handlers of texts."""

from __future__ import annotations

import os
import re
import string
import unicodedata
from collections.abc import Sequence
from typing import Any

import torch

from ..handler_utils.text_utils import get_tokenizer
from ..utils.util import CLEANUP_REGEX
from .base_handler import BaseHandler
from .contractions import CONTRACTION_MAP

_CONTRACTIONS = re.compile("|".join(map(re.escape, CONTRACTION_MAP)), re.IGNORECASE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TextHandler(BaseHandler):
    """Has the vocabulary of the network (`source_vocab.pt`), and what makes words of texts."""

    def __init__(self) -> None:
        super().__init__()
        self.source_vocab: Any = None
        self.tokenizer = get_tokenizer("basic_english")
        self.input_text: Any = None

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        vocabulary = self.manifest["model"].get("sourceVocab") or self.get_source_vocab_path(context)
        self.source_vocab = torch.load(vocabulary, weights_only=True)

    def get_source_vocab_path(self, ctx: Any) -> str:
        """The file of the vocabulary. Raises FileNotFoundError without one."""
        path = os.path.join(ctx.system_properties["model_dir"], "source_vocab.pt")
        if not os.path.isfile(path):
            raise FileNotFoundError("the archive has no source_vocab.pt, which text handlers need")
        return path

    def _expand_contractions(self, text: str) -> str:
        """The text with contractions written out. The first letter stays as it is, in whatever case."""

        def written_out(found: re.Match[str]) -> str:
            return found[0][0] + CONTRACTION_MAP[found[0].lower()][1:]

        return _CONTRACTIONS.sub(written_out, text).replace("'", "")

    def _remove_accented_characters(self, text: str) -> str:
        return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()

    def _remove_html_tags(self, text: str) -> str:
        return CLEANUP_REGEX.sub("", text)

    def _remove_punctuation(self, text: str) -> str:
        return text.translate(_PUNCTUATION)

    _remove_puncutation = _remove_punctuation
    """TorchServe had it so once."""

    def _tokenize(self, text: str) -> list[str]:
        return self.tokenizer(text)

    def get_word_token(self, input_tokens: Sequence[str]) -> list[str]:
        """The words without the mark that byte-pair encodings put in front of them."""
        return [token.replace("\u0120", "") for token in input_tokens]

    def summarize_attributions(self, attributions: Any) -> Any:
        """The importance of each word, of that of each number of its embedding."""
        shares = torch.softmax(attributions, dim=-1)
        return shares / torch.norm(shares.sum(dim=-1))

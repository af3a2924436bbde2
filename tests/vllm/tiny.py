"""Make tiny models with random weights, and what transformers itself computes with them. Runs in the environment of vLLM.

Use: .vllm/bin/python tests/vllm/tiny.py DIRECTORY

    DIRECTORY/encoder     a BERT, whose embeddings may be cut (Matryoshka)
    DIRECTORY/decoder     a Llama, as which it generates text, and gives embeddings with "runner": "pooling"
    DIRECTORY/expected.json    {model: [{"text", "tokens", "embedding"}]}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["red", "green", "blue", "boat", "train", "city", "river", "the", "a", "over", "under", "runs"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
TEXTS = ["the red boat", "a green train runs over the river", "blue", "[CLS] city"]
SIZES: dict[str, Any] = {
    "vocab_size": len(SPECIAL + WORDS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def tokenizer(template: str) -> PreTrainedTokenizerFast:
    """A word is a token; the template says what is around a text."""
    found = Tokenizer(models.WordLevel({word: at for at, word in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return PreTrainedTokenizerFast(
        tokenizer_object=found,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        bos_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[SEP]",
    )


def expected(model: torch.nn.Module, words: PreTrainedTokenizerFast, place: int) -> list[dict[str, Any]]:
    """The state at one place of each text, of length 1."""
    found = []
    for text in TEXTS:
        tokens = words(text)["input_ids"]
        with torch.no_grad():
            state = model(torch.tensor([tokens])).last_hidden_state[0, place]
        found.append({"text": text, "tokens": tokens, "embedding": torch.nn.functional.normalize(state, dim=0).tolist()})
    return found


def main() -> None:
    target = Path(sys.argv[1])
    torch.manual_seed(7)
    encoder = BertModel(BertConfig(**SIZES, is_matryoshka=True, matryoshka_dimensions=[16, 32])).eval()
    decoder = LlamaForCausalLM(LlamaConfig(**SIZES, bos_token_id=2, eos_token_id=3)).eval()
    about = {}
    for name, model, base, template, place in (
        ("encoder", encoder, encoder, "[CLS] $A [SEP]", 0),
        ("decoder", decoder, decoder.model, "[CLS] $A", -1),
    ):
        words = tokenizer(template)
        model.save_pretrained(target / name)
        words.save_pretrained(target / name)
        about[name] = expected(base, words, place)
    (target / "expected.json").write_text(json.dumps(about))


if __name__ == "__main__":
    main()

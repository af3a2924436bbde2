"""Make tiny models with random weights, and what transformers itself computes with them. Runs in the environment of vLLM.

Use: .vllm/bin/python tests/vllm/tiny.py DIRECTORY

    DIRECTORY/encoder     a BERT, whose embeddings may be cut (Matryoshka)
    DIRECTORY/decoder     a Llama, as which it generates text, and gives embeddings with "runner": "pooling"
    DIRECTORY/seer        an Idefics3, which takes images: of these kinds of models one that needs no torchvision
    DIRECTORY/expected.json    {model: [{"text", "tokens", "embedding"}]}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessor,
    Idefics3Processor,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

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


SEER_SPECIAL = [*SPECIAL, "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
SEER_WORDS = [*SEER_SPECIAL, "User:", "Assistant:", *WORDS]
IMAGE_SIDE = 56
SEER_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %} {{ message['role'].capitalize() }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %} <image> {% else %} {{ part['text'] }}{% endif %}{% endfor %} <end_of_utterance>{% endfor %}"
    "{% if add_generation_prompt %} Assistant:{% endif %}"
)


def make_seer(folder: Path) -> None:
    """An image has four tokens. Its part in the states is large, so that answers depend on it."""
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(SEER_WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    tokens = PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="[UNK]",
        pad_token="[PAD]",
        bos_token="[CLS]",
        eos_token="[SEP]",
        extra_special_tokens=SEER_SPECIAL[len(SPECIAL) :],
    )
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2}
    config = Idefics3Config(
        vision_config={"hidden_size": 32, "intermediate_size": 64, "image_size": IMAGE_SIDE, "patch_size": 14, **layers},
        text_config=LlamaConfig(
            **{**SIZES, "vocab_size": len(SEER_WORDS), "max_position_embeddings": 128}, bos_token_id=2, eos_token_id=3
        ),
        image_token_id=SEER_WORDS.index("<image>"),
        scale_factor=2,
        pad_token_id=0,
    )
    model = Idefics3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "connector" in name:
                weight.mul_(50)
    model.save_pretrained(folder)
    side = {"longest_edge": IMAGE_SIDE}
    reader = Idefics3ImageProcessor(size=side, max_image_size=side, do_image_splitting=False)
    Idefics3Processor(reader, tokens, image_seq_len=4, chat_template=SEER_TEMPLATE).save_pretrained(folder)


def main() -> None:
    target = Path(sys.argv[1])
    torch.manual_seed(7)
    make_seer(target / "seer")
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

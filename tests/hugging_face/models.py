"""`python models.py FOLDER`, in the environment with transformers: saves small models with random weights, and what the library
answers, in expected.json."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

folder = Path(sys.argv[1])
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "far", "away", "to", "big", "red", "house"]
TEXTS = ["the cat sat on a mat", "dog", "the big red house and far away to the dog ran " * 8]
SMALL: dict[str, Any] = {
    "vocab_size": len(SPECIAL) + len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
LABELS = {0: "bad", 1: "so so", 2: "good"}
expected: dict[str, Any] = {}


def tokenizer(**more: Any) -> Any:
    made = Tokenizer(WordLevel({word: at for at, word in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=40, **names, **more)


def save(name: str, model: Any, reader: Any) -> Any:
    torch.manual_seed(7)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.eval()
    model.save_pretrained(folder / name)
    reader.save_pretrained(folder / name)
    return model


def logits(model: Any, *texts: list[str]) -> Any:
    tokens = tokenizer()(*texts, padding=True, truncation=True, max_length=40, return_tensors="pt")
    with torch.inference_mode():
        return model(**tokens)


bert = transformers.BertConfig(**SMALL, id2label=LABELS, label2id={label: at for at, label in LABELS.items()})
model = save("mood", transformers.BertForSequenceClassification(bert), tokenizer())
expected["mood"] = {
    "scores": logits(model, TEXTS).logits.softmax(-1).tolist(),
    "pairs": logits(model, TEXTS, TEXTS[::-1]).logits.softmax(-1).tolist(),
}
several = transformers.BertConfig(**SMALL, id2label=LABELS, problem_type="multi_label_classification")
model = save("topics", transformers.BertForSequenceClassification(several), tokenizer())
expected["topics"] = {"scores": logits(model, TEXTS).logits.sigmoid().tolist()}

model = save("embedder", transformers.BertModel(transformers.BertConfig(**SMALL)), tokenizer())
pooling = folder / "embedder" / "1_Pooling"
pooling.mkdir()
modules = [
    {"type": f"sentence_transformers.models.{kind}", "path": path}
    for kind, path in (("Transformer", ""), ("Pooling", pooling.name), ("Normalize", "2_Normalize"))
]
(folder / "embedder" / "modules.json").write_text(json.dumps(modules))
(pooling / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}))
rows = []
for text in TEXTS:
    hidden = logits(model, [text]).last_hidden_state[0].mean(0)
    rows.append((hidden / hidden.norm()).tolist())
expected["embedder"] = {"embedding": rows}

model = save("entities", transformers.BertForTokenClassification(bert), tokenizer())
pipe = transformers.pipeline("token-classification", model=model, tokenizer=tokenizer(), aggregation_strategy="simple")
expected["entities"] = {"result": [json.loads(json.dumps(pipe(text), default=float)) for text in TEXTS[:2]]}
model = save("gaps", transformers.BertForMaskedLM(transformers.BertConfig(**SMALL)), tokenizer())
pipe = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer())
expected["gaps"] = {"result": [json.loads(json.dumps(pipe("the [MASK] sat"), default=float))]}

t5 = transformers.T5Config(
    vocab_size=SMALL["vocab_size"],
    d_model=32,
    d_kv=16,
    d_ff=48,
    num_layers=2,
    num_heads=2,
    decoder_start_token_id=0,
    pad_token_id=0,
    eos_token_id=3,
)
plain = tokenizer(model_input_names=["input_ids", "attention_mask"])
model = save("writer", transformers.T5ForConditionalGeneration(t5), plain)
tokens = plain(TEXTS[:2], padding=True, return_tensors="pt")
with torch.inference_mode():
    made = model.generate(**tokens)
expected["writer"] = {"generated_text": tokenizer().batch_decode(made, skip_special_tokens=True)}

vit = transformers.ViTConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, image_size=32, patch_size=8, id2label=LABELS
)
reader = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
model = save("pictures", transformers.ViTForImageClassification(vit), reader)
pixels = np.arange(40 * 50 * 3, dtype=np.uint32).reshape(40, 50, 3) % 251
picture = Image.fromarray(pixels.astype(np.uint8))
content = io.BytesIO()
picture.save(content, "png")
with torch.inference_mode():
    scores = model(**reader(images=[picture], return_tensors="pt")).logits.softmax(-1)
expected["pictures"] = {"image": base64.b64encode(content.getvalue()).decode(), "scores": scores.tolist()}

expected["texts"] = TEXTS
(folder / "expected.json").write_text(json.dumps(expected))

"""Writes a folder as save_pretrained of transformers does: a small classifier of texts with random weights, and a tokenizer of a
few words. The library itself is not needed."""

import json
import random
import struct
import sys
from pathlib import Path

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["what", "a", "good", "bad", "day", "night", "was", "it", "is", "not"]
SIZE, INNER = 16, 32
CONFIG = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "hidden_size": SIZE,
    "intermediate_size": INNER,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
    "vocab_size": len(SPECIAL) + len(WORDS),
    "id2label": {"0": "bad", "1": "good"},
    "label2id": {"bad": 0, "good": 1},
}


def tensors() -> dict[str, list[int]]:
    """Names and shapes of the weights."""
    found = {
        "bert.embeddings.word_embeddings.weight": [CONFIG["vocab_size"], SIZE],
        "bert.embeddings.position_embeddings.weight": [32, SIZE],
        "bert.embeddings.token_type_embeddings.weight": [2, SIZE],
        "bert.pooler.dense.weight": [SIZE, SIZE],
        "bert.pooler.dense.bias": [SIZE],
        "classifier.weight": [2, SIZE],
        "classifier.bias": [2],
    }
    layer = "bert.encoder.layer.0"
    linear = {
        "attention.self.query": SIZE,
        "attention.self.key": SIZE,
        "attention.self.value": SIZE,
        "attention.output.dense": SIZE,
    }
    for name in linear:
        found |= {f"{layer}.{name}.weight": [SIZE, SIZE], f"{layer}.{name}.bias": [SIZE]}
    found |= {f"{layer}.intermediate.dense.weight": [INNER, SIZE], f"{layer}.intermediate.dense.bias": [INNER]}
    found |= {f"{layer}.output.dense.weight": [SIZE, INNER], f"{layer}.output.dense.bias": [SIZE]}
    for name in ("bert.embeddings", f"{layer}.attention.output", f"{layer}.output"):
        found |= {f"{name}.LayerNorm.weight": [SIZE], f"{name}.LayerNorm.bias": [SIZE]}
    return found


def safetensors(shapes: dict[str, list[int]]) -> bytes:
    """The weights as a file: the length of its head, the head in JSON, the numbers."""
    chance, head, data = random.Random(7), {"__metadata__": {"format": "pt"}}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        numbers = struct.pack(f"<{count}f", *(chance.gauss(0, 0.3) for _ in range(count)))
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


folder = Path(sys.argv[1])
folder.mkdir(parents=True)
(folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
(folder / "vocab.txt").write_text("".join(f"{word}\n" for word in SPECIAL + WORDS))
(folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}))
(folder / "model.safetensors").write_bytes(safetensors(tensors()))
print(f"{folder}: BertForSequenceClassification")

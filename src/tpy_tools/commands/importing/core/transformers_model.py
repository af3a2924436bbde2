"""The text of model.py: a Python model around a model of the library transformers, with all rows of a batch in one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

FOLDER: Final = "hugging_face"
"""The folder beside model.py."""

_MODEL_PY = '''"""{about} Its files are in the folder hugging_face beside this one."""

import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
{imports}
import triton_python_backend_utils as pb_utils

FOLDER = Path(__file__).with_name("hugging_face")
{settings}


class TritonPythonModel:
    def initialize(self, args):
        on_gpu = args["model_instance_kind"] == "GPU"
        self.device = f"cuda:{{args['model_instance_device_id']}}" if on_gpu else "cpu"
        options = {{"local_files_only": True, "trust_remote_code": TRUSTED}}
        self.read = transformers.{reader}.from_pretrained(FOLDER, **options)
        {load}

    def execute(self, requests):
        answers, rows, parts = [None] * len(requests), [], []
        for at, request in enumerate(requests):
            try:
                found = self.rows_of(request)
            except Exception as error:
                answers[at] = failure(error)
                continue
            parts.append((at, slice(len(rows), len(rows) + len(found))))
            rows += found
        if not rows:
            return answers
        try:
            with torch.inference_mode():
                outputs = self.run(rows)
        except Exception as error:
            if len(requests) > 1:  # the others are not to fail with it
                return [self.execute([request])[0] for request in requests]
            return [failure(error)]
        for at, part in parts:
            tensors = [pb_utils.Tensor(name, np.ascontiguousarray(values[part])) for name, values in outputs.items()]
            answers[at] = pb_utils.InferenceResponse(tensors)
        return answers
{run}

def failure(error):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{{type(error).__name__}}: {{error}}"))
'''

ONNX: Final = "onnx"
"""The folder beside model.py with what optimum has exported."""

_LOAD = "self.model = transformers.{model}.from_pretrained(FOLDER, use_safetensors=SAFE, **options).to(self.device).eval()"
_LOAD_ONNX = """provider = "CUDAExecutionProvider" if on_gpu else "CPUExecutionProvider"
        self.model = optimum.onnxruntime.{onnx}.from_pretrained(FOLDER.with_name("onnx"), provider=provider)"""

_TOKENS = """
    def tokens(self, *texts):
        limit = min(LENGTH_MAX or self.read.model_max_length, 1_000_000)
        return self.read(*texts, padding=True, truncation=True, max_length=limit, return_tensors="pt").to(self.device)
"""

_TEXTS = """

def texts_of(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else [value.decode(errors="replace") for value in tensor.as_numpy().ravel()]
"""

_ONE_TEXT = """
    def rows_of(self, request):
        return texts_of(request, "text")
"""

_SCORES = """

def scores_of(logits):
    if PROBLEM == "single_label_classification":
        logits = logits.softmax(-1)
    elif PROBLEM == "multi_label_classification":
        logits = logits.sigmoid()
    return {"scores": logits.float().cpu().numpy()}
"""

_CLASSIFIED = (
    '''
    def run(self, rows):
        """Rows with a second text, and rows without, are a run each."""
        scores = None
        for paired in (False, True):
            chosen = [at for at, (_, pair) in enumerate(rows) if (pair is not None) is paired]
            if chosen:
                texts = [[rows[at][0] for at in chosen]] + ([[rows[at][1] for at in chosen]] if paired else [])
                found = scores_of(self.model(**self.tokens(*texts)).logits)["scores"]
                scores = np.empty((len(rows), found.shape[1]), np.float32) if scores is None else scores
                scores[chosen] = found
        return {"scores": scores}

    def rows_of(self, request):
        texts = texts_of(request, "text")
        return list(zip(texts, texts_of(request, "text_pair") or [None] * len(texts)))
'''
    + _TOKENS
    + _TEXTS
    + _SCORES
)

_EMBEDDED = (
    """
    def run(self, rows):
        tokens = self.tokens(rows)
        hidden = self.model(**tokens).last_hidden_state.float()
        if POOLING == "cls":
            pooled = hidden[:, 0]
        else:
            mask = tokens["attention_mask"].unsqueeze(-1).float()
            pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        if NORMALIZE:
            pooled = torch.nn.functional.normalize(pooled, dim=1)
        return {"embedding": pooled.cpu().numpy()}
"""
    + _ONE_TEXT
    + _TOKENS
    + _TEXTS
)

_GENERATED = (
    """
    def run(self, rows):
        made = self.model.generate(**self.tokens(rows))
        texts = self.read.batch_decode(made, skip_special_tokens=True)
        return {"generated_text": np.array([text.encode() for text in texts], object).reshape(-1, 1)}
"""
    + _ONE_TEXT
    + _TOKENS
    + _TEXTS
)

_PIPED = (
    """
    pipe = None

    def run(self, rows):
        if self.pipe is None:
            self.pipe = transformers.pipeline(TASK, model=self.model, tokenizer=self.read, device=self.device, **OPTIONS)
        found = [json.dumps(self.pipe(row), default=float, ensure_ascii=False).encode() for row in rows]
        return {"result": np.array(found, object).reshape(-1, 1)}
"""
    + _ONE_TEXT
    + _TEXTS
)

_SEEN = (
    '''
    def run(self, rows):
        pixels = {name: torch.cat([row[name] for row in rows]).to(self.device) for name in rows[0]}
        return scores_of(self.model(**pixels).logits)

    def rows_of(self, request):
        """Images as the model takes them: whole ones, which may be large, are in memory one at a time."""
        images = pb_utils.get_input_tensor_by_name(request, "image").as_numpy().ravel()
        return [self.read(images=image_of(content), return_tensors="pt") for content in images]


def image_of(content):
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(content), formats=FORMATS)
    size = f"this one has {image.width} x {image.height}"
    if image.width * image.height > PIXELS_MAX:
        raise ValueError(f"an image has at most {PIXELS_MAX} pixels here, {size}")
    if max(image.size) > min(image.size) * SIDES_RATIO_MAX:  # it would be huge once its shorter side is scaled
        raise ValueError(f"the longer side of an image has at most {SIDES_RATIO_MAX} times the pixels of the shorter one, {size}")
    return image.convert("RGB")
'''
    + _SCORES
)


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of model.py: `reader` and `model` are classes of transformers, `onnx` is the class of optimum for an export as ONNX,
    "" for what is not exported."""

    about: str
    reader: str
    model: str
    run: str
    onnx: str = ""


SCRIPTS: Final[Mapping[str, Script]] = {
    "text-classification": Script(
        about="Scores of texts.",
        reader="AutoTokenizer",
        model="AutoModelForSequenceClassification",
        run=_CLASSIFIED,
        onnx="ORTModelForSequenceClassification",
    ),
    "feature-extraction": Script(
        about="Embeddings of texts.",
        reader="AutoTokenizer",
        model="AutoModel",
        run=_EMBEDDED,
        onnx="ORTModelForFeatureExtraction",
    ),
    "text2text-generation": Script(
        about="Texts made of texts.", reader="AutoTokenizer", model="AutoModelForSeq2SeqLM", run=_GENERATED
    ),
    "token-classification": Script(
        about="Entities in texts.", reader="AutoTokenizer", model="AutoModelForTokenClassification", run=_PIPED
    ),
    "fill-mask": Script(about="Words for the gap in a text.", reader="AutoTokenizer", model="AutoModelForMaskedLM", run=_PIPED),
    "image-classification": Script(
        about="Scores of images.",
        reader="AutoImageProcessor",
        model="AutoModelForImageClassification",
        run=_SEEN,
        onnx="ORTModelForImageClassification",
    ),
}
"""By the name of the task, as the library has it."""


def model_py(task: str, settings: Mapping[str, Any], *, onnx: bool = False) -> str:
    """The text of model.py. `settings` are literals, whatever the texts in them are. With `onnx` it runs the export."""
    script = SCRIPTS[task]
    load = (_LOAD_ONNX if onnx else _LOAD).format(model=script.model, onnx=script.onnx)
    imports = f"{'import optimum.onnxruntime' if onnx else ''}\nimport torch\nimport transformers".strip()
    lines = "\n".join(f"{name} = {value!a}" for name, value in settings.items())
    text = _MODEL_PY.format(about=script.about, imports=imports, settings=lines, reader=script.reader, load=load, run=script.run)
    return f"{text.rstrip()}\n"

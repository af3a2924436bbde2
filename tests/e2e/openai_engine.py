"""A model in Python with the inputs and outputs of vLLM's backend: it says what the test wants, and what it was asked.

The prompt is what it says, token by token of three characters; "settings" makes it say its settings, "seed" its seed. With a
structured output it says the prompt only if that is JSON, else the smallest document: enough to tell who obeyed.
"""

from __future__ import annotations

from pathlib import Path

from .repositories import ModelFolder, parameter

_INPUTS = (
    ("text_input", "STRING", False),
    ("image", "STRING", True),
    ("stream", "BOOL", True),
    ("sampling_parameters", "STRING", True),
    ("exclude_input_in_output", "BOOL", True),
    ("return_finish_reason", "BOOL", True),
    ("return_cumulative_logprob", "BOOL", True),
    ("return_logprobs", "BOOL", True),
    ("return_num_input_tokens", "BOOL", True),
    ("return_num_output_tokens", "BOOL", True),
)
_OUTPUTS = (
    ("text_output", "STRING"),
    ("finish_reason", "STRING"),
    ("cumulative_logprob", "FP32"),
    ("logprobs", "STRING"),
    ("num_input_tokens", "UINT32"),
    ("num_output_tokens", "UINT32"),
)

MODEL = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


def given(request, name, default=None):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.answer(request, request.get_response_sender())

    def answer(self, request, sender):
        prompt = given(request, "text_input").decode()
        settings = json.loads(given(request, "sampling_parameters", b"{}"))
        images = pb_utils.get_input_tensor_by_name(request, "image")
        if "prompt_token_ids" in settings:
            prompt = " ".join(f"t{token}" for token in settings["prompt_token_ids"])
        says = prompt
        if prompt == "settings":
            says = json.dumps(settings)
        elif prompt == "seed":
            says = f"seed {settings['seed']}"
        elif images is not None:
            says = f"{prompt} {[image.decode() for image in images.as_numpy()]}"
        tokens = [says[at : at + 3] for at in range(0, len(says), 3)]
        reason = "length" if len(tokens) > settings["max_tokens"] else "stop"
        tokens = tokens[: settings["max_tokens"]]
        pieces = [[token] for token in tokens] if given(request, "stream") else [tokens]
        for number, piece in enumerate(pieces, 1):
            last = number == len(pieces)
            sender.send(self.response(request, settings, prompt, piece, reason if last else "None"))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def response(self, request, settings, prompt, piece, reason):
        outputs = [text("text_output", "".join(piece))]
        if given(request, "return_finish_reason"):
            outputs.append(text("finish_reason", reason))
        if given(request, "return_num_input_tokens"):
            outputs.append(pb_utils.Tensor("num_input_tokens", np.array(len(prompt), np.uint32)))
        if given(request, "return_num_output_tokens"):
            outputs.append(pb_utils.Tensor("num_output_tokens", np.array([len(piece)], np.uint32)))
        if given(request, "return_cumulative_logprob"):
            outputs.append(pb_utils.Tensor("cumulative_logprob", np.array([-((settings["seed"] + 3) % 5)], np.float32)))
        if given(request, "return_logprobs"):
            found = []
            for token in piece:
                candidates = {str(hash(token) % 1000): {"logprob": -0.5, "rank": 2, "decoded_token": token}}
                for rank in range(settings["logprobs"]):
                    candidates[f"other{rank}"] = {"logprob": -0.25 - rank, "rank": 1, "decoded_token": f"<{rank}>"}
                found.append(candidates)
            outputs.append(text("logprobs", json.dumps(found)))
        return pb_utils.InferenceResponse(outputs)


def text(name, value):
    return pb_utils.Tensor(name, np.array([value.encode()], object))
"""


def add_engine(repository: Path, name: str, **parameters: str) -> None:
    """Add the model under that name, with more parameters in its configuration."""
    inputs = ", ".join(
        f'{{ name: "{each}" data_type: TYPE_{kind} dims: [ {-1 if each == "image" else 1} ] optional: {str(optional).lower()} }}'
        for each, kind, optional in _INPUTS
    )
    outputs = ", ".join(f'{{ name: "{each}" data_type: TYPE_{kind} dims: [ -1 ] }}' for each, kind in _OUTPUTS)
    message = "{{ message.content }}{{ message.reasoning_content }}"
    template = f"{{% for message in messages %}}{message}{{% endfor %}}{{{{ suffix }}}}{{{{ reasoning_effort }}}}"
    config = f'backend: "python"\ninput [ {inputs} ]\noutput [ {outputs} ]\nmodel_transaction_policy {{ decoupled: true }}\n'
    for key, value in {"chat_template": template, **parameters}.items():
        config += parameter(key, value)
    ModelFolder(repository, name).config(config).python(MODEL)

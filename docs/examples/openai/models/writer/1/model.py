"""A language model of a few lines: it goes on with a text by the pairs of words that it has counted in a book of rules."""

import json
import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import triton_python_backend_utils as pb_utils

BOOK = """a server answers every request . a request names a model . a model answers with tensors . every model has a name .
the queue holds every request until a model is free . the model is free when every request has an answer ."""


class TritonPythonModel:
    def initialize(self, args):
        words = BOOK.split()
        self.followers = defaultdict(list)
        for word, follower in zip(words, words[1:] + words[:1], strict=True):
            self.followers[word].append(follower)
        self.writers = ThreadPoolExecutor(4)

    def execute(self, requests):
        for request in requests:
            [text] = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            stream = pb_utils.get_input_tensor_by_name(request, "stream")
            settings = json.loads(request.parameters() or "{}")
            self.writers.submit(
                self.write,
                request.get_response_sender(),
                text.decode(),
                stream is not None and bool(stream.as_numpy()[0]),
                settings,
            )

    def finalize(self):
        self.writers.shutdown()

    def write(self, sender, text, stream, settings):
        """Send the words one by one, or all together."""
        given = text.split()
        chance = random.Random(settings.get("seed", 0))
        stops = json.loads(settings["stop"]) if settings.get("stop", "").startswith("[") else [settings.get("stop")]
        limit = settings.get("max_tokens", 16)
        words, reason = [], "length"
        last = given[-1] if given else "."
        while len(words) < limit and not sender.is_cancelled():
            last = chance.choice(self.followers.get(last) or self.followers["."])
            if last in stops:
                reason = "stop"
                break
            words.append(f" {last}")
            if stream:
                sender.send(response(f" {last}", len(given), 1, "none"))
        sender.send(
            response("" if stream else "".join(words), len(given), 0 if stream else len(words), reason),
            flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
        )


def response(text, given, written, reason):
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("text_output", np.array([text.encode()], object)),
            pb_utils.Tensor("num_input_tokens", np.array([given], np.uint32)),
            pb_utils.Tensor("num_output_tokens", np.array([written], np.uint32)),
            pb_utils.Tensor("finish_reason", np.array([reason.encode()], object)),
        ]
    )

"""Goes on with a text, word by word: a response for each, as soon as it is there, until a sentence ends.

TEXT: BYTES[1] -> WORD: BYTES[1], any number of times

The request's parameters: `count`, how many words at most; `seed`, another text for another number; `per_second`, how many words
in a second, to watch them come.
"""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import triton_python_backend_utils as pb_utils

COUNT = 50
WRITERS = 16
"""Texts that are written side by side."""


class TritonPythonModel:
    def initialize(self, args):
        self.following = json.loads((Path(__file__).parent / "following.json").read_text(encoding="utf-8"))
        self.writers = ThreadPoolExecutor(WRITERS)

    def execute(self, requests):
        for request in requests:
            [text] = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            options = json.loads(request.parameters() or "{}")
            self.writers.submit(self.write, request.get_response_sender(), text, options)

    def finalize(self):
        self.writers.shutdown()

    def write(self, sender, text, options):
        """Send the words, and the end, or an error as the end."""
        error = None
        try:
            words = self.words(text.decode(), options)
            pause_s = 1 / max(0.0, float(options["per_second"])) if "per_second" in options else 0
        except (ValueError, ZeroDivisionError) as problem:  # among them: not UTF-8
            words, error = (), pb_utils.TritonError(str(problem), pb_utils.TritonError.INVALID_ARG)
        for word in words:
            if sender.is_cancelled():
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array([word.encode()], dtype=object))]))
            time.sleep(pause_s)
        response = None if error is None else pb_utils.InferenceResponse(error=error)
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def words(self, text, options):
        """An iterator over the words. Raises ValueError for a count that is not a number."""
        count = int(options.get("count", COUNT))
        chance = random.Random(options.get("seed", 0))
        first, second = ["", "", *text.split()][-2:]
        return self.chosen(first, second, count, chance)

    def chosen(self, first, second, count, chance):
        for _ in range(count):
            following = self.following.get(f"{first} {second}")
            if following is None:  # nothing is known to follow
                return
            [word] = chance.choices(list(following), list(following.values()))
            yield word
            if word.endswith("."):
                return
            first, second = second, word

"""Measures tokens/s and the time to the first token of a language model: the bare engine's loop, and the same engine in a server
that streams to as many clients. Rounds alternate; each is its own process. The clients' CPU time counts against the server,
on the same cores.

Use: make bench-llm, or python -m benchmarks.llm FOLDER_OF_MODELS [--rounds N] [--tokens N] [--results FILE]
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STREAMS = (1, 4, 16, 64)
_TEXT = "the old sailor saw a small light on the far shore and asked his friend what it could be in this weather "
_WORDS = (_TEXT * 3).split()
_READY = re.compile(r'"Started HTTPService at ([\d.]+):(\d+)"')


def prompts(count: int) -> list[str]:
    """Of 10 to 60 words, all different."""
    return [
        f"{number}. " + " ".join(_WORDS[at % len(_WORDS)] for at in range(10 + 50 * number // count)) for number in range(count)
    ]


def bare(model: Path, streams: int, tokens: int) -> dict[str, float]:
    """Tokens/s and the median time to the first token of the pipeline in a loop, which reads every token."""
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = 1024
    scheduler.max_num_seqs = 64
    scheduler.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU", {})
    config = genai.GenerationConfig()
    config.max_new_tokens = tokens
    config.ignore_eos = True
    config.apply_chat_template = False
    pipeline.generate(["warm up"], [config])
    begun = time.perf_counter()
    open_handles = {number: pipeline.add_request(number, text, config) for number, text in enumerate(prompts(streams))}
    first: dict[int, float] = {}
    counted = 0
    while pipeline.has_non_finished_requests():
        pipeline.step()
        for number, handle in open_handles.items():
            while handle.can_read():
                for output in handle.read().values():
                    counted += len(output.generated_ids)
                    first.setdefault(number, time.perf_counter() - begun)
    return {"tokens_s": counted / (time.perf_counter() - begun), "first_ms": statistics.median(first.values()) * 1000}


def served(models: Path, streams: int, tokens: int, *, stream: bool) -> dict[str, float]:
    """The same of a server, with a client for each stream."""
    command = [sys.executable, "-m", "tpy", "serve", "--model-repository", str(models)]
    ports = ["--http-address=127.0.0.1", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false"]
    with subprocess.Popen([*command, *ports], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = next((match for line in server.stderr if (match := _READY.search(line))), None)
        if found is None:
            raise RuntimeError("the server ended before it served")
        threading.Thread(target=server.stderr.read, daemon=True).start()
        try:
            _ask(found[1], int(found[2]), "warm up", tokens, stream=stream)
            first: list[float] = []
            counts: list[int] = []
            begun = time.perf_counter()

            def client(text: str) -> None:
                count, first_s = _ask(found[1], int(found[2]), text, tokens, stream=stream)
                counts.append(count)
                first.append(first_s)

            clients = [threading.Thread(target=client, args=(text,)) for text in prompts(streams)]
            for each in clients:
                each.start()
            for each in clients:
                each.join()
            return {
                "tokens_s": sum(counts) / (time.perf_counter() - begun),
                "first_ms": statistics.median(first) * 1000,
            }
        finally:
            server.send_signal(signal.SIGTERM)


def _ask(host: str, port: int, text: str, tokens: int, *, stream: bool) -> tuple[int, float]:
    """The number of tokens of the answer, and the seconds until something of it came."""
    sampling = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    body = {"text_input": text, "stream": stream, "sampling_parameters": json.dumps(sampling), "return_num_output_tokens": True}
    connection = http.client.HTTPConnection(host, port)
    begun = time.perf_counter()
    connection.request("POST", f"/v2/models/chat/generate{'_stream' if stream else ''}", json.dumps(body))
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read().decode())
    count, first_s = 0, 0.0
    for line in answer:
        content = line.removeprefix(b"data: ").strip()
        if content:
            first_s = first_s or time.perf_counter() - begun
            count += int(json.loads(content).get("num_output_tokens", 0))
    connection.close()
    return count, first_s


def main() -> None:
    """Measure and print; with --results also write all values."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm")
    parser.add_argument("models", type=Path, help="folder with chat/1/model.gguf")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (64)")
    parser.add_argument("--streams", type=int, nargs="*", default=STREAMS)
    parser.add_argument("--results", type=Path, help="file for all values, as JSON")
    given = parser.parse_args()
    forms = ("bare engine", "server, streams", "server, whole answers")
    rows = []
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for streams in given.streams:
            for number in range(given.rounds):
                for form in forms if number % 2 == 0 else forms[::-1]:
                    rows.append(
                        {"form": form, "streams": streams, **pool.apply(_run, (form, streams, given.models, given.tokens))}
                    )
    _print(rows, given.streams, forms)
    if given.results is not None:
        given.results.parent.mkdir(parents=True, exist_ok=True)
        given.results.write_text(json.dumps({"load": os.getloadavg(), "rows": rows}, indent=1))


def _run(form: str, streams: int, models: Path, tokens: int) -> dict[str, float]:
    if form == "bare engine":
        return bare(models / "chat/1/model.gguf", streams, tokens)
    return served(models, streams, tokens, stream=form == "server, streams")


def _print(rows: Sequence[dict[str, Any]], streams: Sequence[int], forms: Sequence[str]) -> None:
    print("| at once | | " + " | ".join(forms) + " |\n|--:|---|" + "--:|" * len(forms))
    for count in streams:
        for key, name in (("tokens_s", "tokens/s"), ("first_ms", "first token, ms")):
            cells, before = [], 0.0
            for form in forms:
                values = [row[key] for row in rows if row["form"] == form and row["streams"] == count]
                median = statistics.median(values)
                before = before or median
                share = f" ({median / before:.2f})" if key == "tokens_s" and form != forms[0] else ""
                cells.append(f"{median:.1f}{share}")
            print(f"| {count} | {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

"""Measures tokens/s and the time to the first token of a language model: the bare engine's loop, and the same engine in a server
that streams to as many clients. Rounds alternate; each is its own process. The clients are one thread that takes bytes and counts
events, and reads what they say afterwards: its CPU time, on the same cores, is printed.

Use: make bench-llm, or python -m benchmarks.llm FOLDER_OF_MODELS [--rounds N] [--tokens N] [--results FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks.processes import cpu_s, family

_VALUES = {
    "tokens_s": "tokens/s",
    "first_ms": "first token, ms",
    "cpu_s": "CPU time for 1,000 tokens, s",
    "clients_cpu_s": "the clients' beside, s",
}
STREAMS = (1, 4, 16, 64)
_TEXT = "the old sailor saw a small light on the far shore and asked his friend what it could be in this weather "
_WORDS = (_TEXT * 3).split()
_COUNT = re.compile(rb'"num_output_tokens":(\d+)')
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
    scheduler.max_num_batched_tokens = 512  # as the server's, twice the engine's own
    scheduler.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU", {})
    config = genai.GenerationConfig()
    config.max_new_tokens = tokens
    config.ignore_eos = True
    config.apply_chat_template = False
    pipeline.generate(["warm up"], [config])
    begun, cpu_begun_s = time.perf_counter(), time.process_time()
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
    took_s = time.perf_counter() - begun
    return {
        "tokens_s": counted / took_s,
        "first_ms": statistics.median(first.values()) * 1000,
        "cpu_s": (time.process_time() - cpu_begun_s) * 1000 / counted,
        "clients_cpu_s": 0.0,
    }


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
            address = found[1], int(found[2])
            _Clients(address, ["warm up"], tokens, stream=stream).run()
            members = family(server.pid)
            clients = _Clients(address, prompts(streams), tokens, stream=stream)
            begun, cpu_begun_s, own_begun_s = time.perf_counter(), cpu_s(members), time.process_time()
            clients.run()
            took_s, clients_cpu_s = time.perf_counter() - begun, time.process_time() - own_begun_s
            counted = clients.tokens()
            return {
                "tokens_s": counted / took_s,
                "first_ms": statistics.median(clients.first_s) * 1000,
                "cpu_s": (cpu_s(members) - cpu_begun_s) * 1000 / counted,
                "clients_cpu_s": clients_cpu_s * 1000 / counted,
            }
        finally:
            server.send_signal(signal.SIGTERM)


class _Clients:
    """A connection for each text. `first_s` are the times at which something of an answer came."""

    def __init__(self, address: tuple[str, int], texts: Sequence[str], tokens: int, *, stream: bool) -> None:
        self.first_s: list[float] = []
        self._address = address
        self._received: list[list[bytes]] = [[] for _ in texts]
        sampling = json.dumps({"max_tokens": tokens, "ignore_eos": True, "temperature": 0})
        asked = {"stream": stream, "sampling_parameters": sampling, "return_num_output_tokens": True}
        self._requests = [self._request({"text_input": text, **asked}) for text in texts]

    def _request(self, body: dict[str, object]) -> bytes:
        content = json.dumps(body)
        path = f"/v2/models/chat/generate{'_stream' if body['stream'] else ''}"
        head = f"POST {path} HTTP/1.1\r\nHost: {self._address[0]}\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
        return (head + content).encode()

    def run(self) -> None:
        """Send all requests, and take what comes until every connection is closed."""
        begun = time.perf_counter()
        with selectors.DefaultSelector() as selector:
            for request, received in zip(self._requests, self._received, strict=True):
                connection = socket.create_connection(self._address)
                connection.sendall(request)
                selector.register(connection, selectors.EVENT_READ, received)
            while selector.get_map():
                for key, _ in selector.select():
                    connection = cast(socket.socket, key.fileobj)
                    data = connection.recv(65536)
                    if not data:
                        selector.unregister(connection)
                        connection.close()
                    elif b"text_output" in data and not any(b"text_output" in before for before in key.data[-1:]):
                        self.first_s.append(time.perf_counter() - begun)
                    key.data.append(data)

    def tokens(self) -> int:
        """The tokens of all answers. Raises RuntimeError for an error in its place."""
        total = 0
        for received in self._received:
            answer = b"".join(received)
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(answer.decode())
            total += sum([int(count) for count in _COUNT.findall(answer)])
        return total


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
        for key, name in _VALUES.items():
            cells, before = [], 0.0
            for form in forms:
                values = [row[key] for row in rows if row["form"] == form and row["streams"] == count]
                median = statistics.median(values)
                before = before or median
                share = f" ({median / before:.2f})" if key == "tokens_s" and form != forms[0] else ""
                cells.append(f"{median:.{2 if key.endswith('cpu_s') else 1}f}{share}")
            print(f"| {count} | {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

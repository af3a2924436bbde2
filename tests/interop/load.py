"""Load generators and other people's clients."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .trial import Command, Setting

_HERE = Path(__file__).parent
_SHORT = ("-p", "500", "-s", "500", "-r", "5")
"""Of perf_analyzer: windows of half a second, any of which will do."""


def perf_analyzer(setting: Setting) -> Sequence[Command]:
    """Each way to send, for a moment."""
    grpc, http = ("-i", "grpc", "-u", setting.grpc), ("-i", "http", "-u", setting.http)
    of_affine = ("-m", "affine")
    runs = (
        (*of_affine, *grpc, "--concurrency-range", "1:2"),
        (*of_affine, *http, "--concurrency-range", "2", "-b", "4"),
        (*of_affine, *grpc, "--streaming", "--concurrency-range", "4"),
        (*of_affine, *grpc, "--async", "--request-rate-range", "200"),
        (
            *of_affine,
            *http,
            "--async",
            "--concurrency-range",
            "4",
            "--collect-metrics",
            "--metrics-url",
            f"{setting.metrics}/metrics",
        ),
        ("-m", "simple_sequence", *grpc, "--streaming", "--concurrency-range", "2"),
        ("-m", "affine_twice", *grpc, "--concurrency-range", "2"),
        ("-m", "simple_string", *http, "--string-data", "7", "--input-tensor-format", "json", "--output-tensor-format", "json"),
    )
    return [_perf(setting, *flags) for flags in runs]


def perf_analyzer_shared_memory(setting: Setting) -> Sequence[Command]:
    """Tensors in regions of the system."""
    return (
        _perf(setting, "-m", "affine", "-i", "grpc", "-u", setting.grpc, "--shared-memory", "system"),
        _perf(setting, "-m", "affine", "-i", "http", "-u", setting.http, "--shared-memory", "system"),
    )


def perf_analyzer_trace(setting: Setting) -> Sequence[Command]:
    """Trace settings that ask for timestamps."""
    flags = ("--trace-level", "TIMESTAMPS", "--trace-rate", "100")
    return (_perf(setting, "-m", "affine", "-i", "grpc", "-u", setting.grpc, *flags),)


def _perf(setting: Setting, *flags: str) -> Command:
    return Command((setting.tools.perf_analyzer(), *_SHORT, *flags), r"throughput: [1-9]")


def pytriton(setting: Setting) -> Sequence[Command]:
    """A program with its clients."""
    python = setting.tools.python("triton", "nvidia-pytriton")
    return (Command((python, _HERE / "pytriton_client.py", setting.http, setting.grpc), "PASS"),)


def tritony(setting: Setting) -> Sequence[Command]:
    """A program with its clients."""
    python = setting.tools.python("tritony", "tritony")
    return (Command((python, _HERE / "tritony_client.py", setting.http, setting.grpc), "PASS"),)


def aiperf(setting: Setting) -> Sequence[Command]:
    """Requests made from a template, counted with a tokenizer of two words, which it takes for one that was downloaded."""
    program = setting.tools.python("aiperf", "aiperf").parent / "aiperf"
    _write_tokenizer(setting.folder / "home")
    asked = setting.folder / "asked.jsonl"
    asked.write_text('{"text": "one two"}\n{"text": "three"}\n')
    template = '{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,1],"data":[{{ text|tojson }}]}]}'
    flags = {
        "--endpoint-type": "template",
        "--extra-inputs": json.dumps({"payload_template": template, "response_field": "outputs[0].data[0]"}),
        "--url": f"http://{setting.http}",
        "--endpoint": "/v2/models/simple_identity/infer",
        "-m": "simple_identity",
        "--request-count": "20",
        "--concurrency": "2",
        "--tokenizer": "local/words",
        "--input-file": str(asked),
        "--custom-dataset-type": "single_turn",
        "--ui": "simple",
        "--artifact-dir": str(setting.folder / "aiperf"),
        "--server-metrics": f"http://{setting.metrics}/metrics",
    }
    environment = {"HF_HOME": str(setting.folder / "home"), "HF_HUB_OFFLINE": "1"}
    arguments = [program, "profile", *(word for flag in flags.items() for word in flag)]
    return (Command(arguments, r"Request Count[^\n]*20", 150.0, environment),)


def _write_tokenizer(home: Path) -> None:
    model = home / "hub" / "models--local--words"
    files = model / "snapshots" / "0"
    files.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0")
    vocabulary = {"[UNK]": 0, "one": 1, "two": 2}
    words = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    absent = ("truncation", "padding", "normalizer", "post_processor", "decoder")
    (files / "tokenizer.json").write_text(json.dumps({**dict.fromkeys(absent), **words}))
    of_class = {"tokenizer_class": "PreTrainedTokenizerFast", **dict.fromkeys(("unk_token", "eos_token", "bos_token"), "[UNK]")}
    (files / "tokenizer_config.json").write_text(json.dumps(of_class))

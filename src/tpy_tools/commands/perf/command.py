"""The flags of `tpy perf`; those of perf_analyzer that it does not have, and why."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tpy.cli.parsing import FiniteRange, UsageError
from tpy_tools.commands.connecting import json_option

_OWN_SERVER = "it measures servers that run"

REFUSED = {
    "--model-repository": _OWN_SERVER,
    "--periodic-concurrency-range": "use --concurrency-range or --request-intervals",
    "--request-period": "it belongs to --periodic-concurrency-range",
    "--triton-server-directory": _OWN_SERVER,
}
"""Flags of perf_analyzer 2.51 that are refused by name, with what to do instead."""


def refuse(arguments: Sequence[str]) -> None:
    """Raise UsageError for a flag of perf_analyzer that is not supported."""
    for argument in arguments:
        name = argument.partition("=")[0]
        if name in REFUSED:
            raise UsageError(f"perf_analyzer's {name} is not supported: {REFUSED[name]}")


def _without_old(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the flags, those of deprecated ones as their successors have them. Raises UsageError."""
    found = {name: value for name, value in given.items() if not name.startswith(("ignored_", "old_"))}
    concurrency, highest = given["old_concurrency"], given["old_concurrency_max"]
    if concurrency or highest or given["old_dynamic"]:
        if found["concurrency"]:
            raise UsageError("-t, -c and -d are old forms of --concurrency-range: expected one of both")
        found["concurrency"] = f"{concurrency or 1}:{highest}:1" if given["old_dynamic"] else str(concurrency or 1)
    data = (*(["zero"] if given["old_zero"] else []), *([given["old_folder"]] if given["old_folder"] else []))
    if data:
        if found["input_data"] or len(data) > 1:
            raise UsageError("-z and --data-directory are old forms of --input-data: expected one of them")
        found["input_data"] = data
    return found


_FILE = click.Path(path_type=Path)


class _PerfCommand(click.Command):
    """Refuses flags of perf_analyzer that are not supported by their name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse(args)
        return super().parse_args(ctx, args)


@click.command(cls=_PerfCommand, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.argument("name", metavar="[MODEL]", required=False)
@click.option("-m", "--model", default="", metavar="NAME", help="The model, as perf_analyzer takes it.")
@click.option("-x", "--model-version", default="", metavar="VERSION", help="Its version; the server's choice if not given.")
@click.option(
    "-u",
    "--url",
    default="",
    metavar="URL",
    help="The server; by default this machine's, at its port for the protocol (TPY_HTTP_PORT, TPY_GRPC_PORT).",
)
@click.option(
    "-i",
    "--protocol",
    default="http",
    show_default=True,
    type=click.Choice(["http", "grpc"], case_sensitive=False),
    help="The protocol.",
)
@click.option("--streaming", is_flag=True, help="ModelStreamInfer, over gRPC; server-sent events, for generate and OpenAI.")
@click.option(
    "--service-kind",
    default="triton",
    show_default=True,
    type=click.Choice(["triton", "generate", "openai"]),
    help="The API: KServe v2, the generate extension, or OpenAI's.",
)
@click.option("--endpoint", default="v1/chat/completions", show_default=True, metavar="PATH", help="The path of OpenAI's API.")
@click.option(
    "--concurrency-range",
    "--concurrency",
    "concurrency",
    default="",
    metavar="START:END:STEP",
    help="Requests in flight; the step may be a factor: 1:64:*2. END 0: until --latency-threshold. [default: 1]",
)
@click.option(
    "--request-rate-range",
    "--rate",
    "rate",
    default="",
    metavar="START:END:STEP",
    help="Requests started per second, whether earlier ones are answered or not; latencies count from when a request was due.",
)
@click.option(
    "--request-distribution",
    default="constant",
    show_default=True,
    type=click.Choice(["constant", "poisson"]),
    help="The times between the requests of a rate.",
)
@click.option(
    "--request-intervals",
    type=_FILE,
    metavar="FILE",
    help="Start requests at these intervals, over and over: a number of microseconds per line.",
)
@click.option(
    "-p",
    "--measurement-interval",
    default=5000,
    show_default=True,
    type=click.IntRange(1),
    metavar="MS",
    help="The length of a window.",
)
@click.option(
    "--measurement-mode",
    default="time_windows",
    show_default=True,
    type=click.Choice(["time_windows", "count_windows"]),
    help="Windows end by time, or once they have --measurement-request-count requests.",
)
@click.option(
    "--measurement-request-count",
    default=50,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Requests per window in count_windows.",
)
@click.option(
    "--request-count",
    default=0,
    type=click.IntRange(0),
    metavar="N",
    help="Measure N requests instead of windows until they are stable.",
)
@click.option(
    "--warmup-request-count",
    default=0,
    type=click.IntRange(0),
    metavar="N",
    help="Uncounted requests before each level.",
)
@click.option(
    "--warmup",
    "warmup_s",
    default=0.0,
    type=FiniteRange(0),
    metavar="SECONDS",
    help="Uncounted time before each level.",
)
@click.option(
    "-s",
    "--stability-percentage",
    default=10.0,
    show_default=True,
    type=FiniteRange(0),
    metavar="PERCENT",
    help="Three windows that differ by no more than this, in throughput and latency, are the result.",
)
@click.option(
    "-r", "--max-trials", default=10, show_default=True, type=click.IntRange(1), metavar="N", help="Maximum number of windows."
)
@click.option(
    "--percentile",
    default=-1,
    show_default=True,
    type=click.IntRange(-1, 99),
    metavar="N",
    help="The latency that must be stable and below the threshold; -1 is the average.",
)
@click.option(
    "-l",
    "--latency-threshold",
    default=0,
    type=click.IntRange(0),
    metavar="MS",
    help="Try no higher level once the latency exceeds this.",
)
@click.option(
    "--binary-search",
    is_flag=True,
    help="Find the highest level of the range that meets --latency-threshold, to within the step.",
)
@click.option(
    "--processes", default=1, show_default=True, type=click.IntRange(1, 256), metavar="N", help="Processes that send requests."
)
@click.option(
    "-b",
    "--batch-size",
    "batch",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Inferences in one request.",
)
@click.option(
    "--input-data",
    multiple=True,
    metavar="zero|random|PATH",
    help="Zeros, random values, JSON files in perf_analyzer's format, or a folder of images or texts. [default: random; for "
    "OpenAI's API prompts of random words, --string-length characters long]",
)
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME:SIZES", help="Sizes of an input, separated by commas, without the batch."
)
@click.option(
    "--string-length", default=128, show_default=True, type=click.IntRange(0), metavar="N", help="Length of random strings."
)
@click.option("--string-data", metavar="TEXT", help="The strings to send.")
@click.option(
    "--input-tensor-format",
    default="binary",
    show_default=True,
    type=click.Choice(["binary", "json"]),
    help="Format of inputs over HTTP.",
)
@click.option(
    "--output-tensor-format",
    default="binary",
    show_default=True,
    type=click.Choice(["binary", "json"]),
    help="Format of outputs over HTTP.",
)
@click.option(
    "--request-parameter",
    "parameters",
    multiple=True,
    metavar="NAME:VALUE:TYPE",
    help="A parameter of each request: int, float, bool or string.",
)
@click.option(
    "--shared-memory",
    default="none",
    show_default=True,
    type=click.Choice(["none", "system", "cuda"]),
    help="Inputs and outputs in shared memory of this machine, or of its first GPU.",
)
@click.option(
    "--output-shared-memory-size",
    default=102_400,
    show_default=True,
    type=click.IntRange(1),
    metavar="BYTES",
    help="Size of each output, for one inference.",
)
@click.option(
    "--num-of-sequences",
    default=4,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Sequences at the same time, with a rate.",
)
@click.option(
    "--sequence-length",
    default=0,
    type=click.IntRange(0),
    metavar="N",
    help="Requests of a sequence. [default: 20, or as many as the data have]",
)
@click.option(
    "--sequence-length-variation",
    default=20.0,
    show_default=True,
    type=FiniteRange(0, 100),
    metavar="PERCENT",
    help="Variation of --sequence-length.",
)
@click.option(
    "--sequence-id-range",
    default="1",
    show_default=True,
    metavar="START:END",
    help="Sequence ids; they start over at END.",
)
@click.option(
    "--bls-composing-models",
    default="",
    metavar="NAMES",
    help="Models that the model calls, separated by commas: their statistics are shown, too.",
)
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header for each request; over gRPC, metadata."
)
@click.option("--ssl", "tls", is_flag=True, help="Use TLS; implied by an address that begins with https://.")
@click.option(
    "--ssl-grpc-use-ssl", "tls_grpc", is_flag=False, flag_value="true", default="false", metavar="BOOL", help="As --ssl."
)
@click.option(
    "--ssl-https-ca-certificates-file",
    "--ssl-grpc-root-certifications-file",
    "ca_file",
    default="",
    metavar="FILE",
    help="Certificates to trust, PEM.",
)
@click.option(
    "--ssl-https-client-certificate-file",
    "--ssl-grpc-certificate-chain-file",
    "certificate_file",
    default="",
    metavar="FILE",
    help="The client's certificate, PEM.",
)
@click.option(
    "--ssl-https-private-key-file",
    "--ssl-grpc-private-key-file",
    "key_file",
    default="",
    metavar="FILE",
    help="Private key (PEM), if not in the certificate file.",
)
@click.option(
    "--ssl-https-verify-peer",
    "verify",
    default=1,
    type=click.IntRange(0, 1),
    metavar="0|1",
    help="Verify the server's certificate. [default: 1]",
)
@click.option(
    "--ssl-https-verify-host",
    "verify_host",
    default=2,
    type=click.IntRange(0, 2),
    metavar="0|1|2",
    help="Verify that the certificate is for this host. [default: 2]",
)
@click.option(
    "--ssl-https-client-certificate-type",
    "certificate_type",
    default="PEM",
    show_default=True,
    type=click.Choice(["PEM", "DER"]),
    help="The form of the client's certificate.",
)
@click.option(
    "--ssl-https-private-key-type",
    "key_type",
    default="PEM",
    show_default=True,
    type=click.Choice(["PEM", "DER"]),
    help="The form of the private key.",
)
@click.option(
    "--grpc-compression-algorithm",
    "compression",
    default="none",
    show_default=True,
    type=click.Choice(["none", "gzip", "deflate"]),
    help="Compression of requests over gRPC.",
)
@click.option(
    "--trace-level",
    "trace_levels",
    multiple=True,
    type=click.Choice(["OFF", "TIMESTAMPS", "TENSORS"]),
    help="Set the model's tracing before the run, as the other trace flags do.",
)
@click.option("--trace-rate", type=click.IntRange(0), metavar="N", help="Trace one in N requests.")
@click.option("--trace-count", type=click.IntRange(-1), metavar="N", help="Number of traces; -1: no limit.")
@click.option("--log-frequency", type=click.IntRange(0), metavar="N", help="Traces in one file; 0: all.")
@click.option("--collect-metrics", is_flag=True, help="Show the use of the server's GPUs, from its metrics page.")
@click.option(
    "--metrics-url", default="localhost:8002/metrics", show_default=True, metavar="URL", help="Address of the metrics page."
)
@click.option(
    "--metrics-interval",
    default=1000,
    show_default=True,
    type=click.IntRange(1),
    metavar="MS",
    help="Time between reads of the metrics page.",
)
@click.option("-f", "--csv", "csv_file", type=_FILE, metavar="FILE", help="Write perf_analyzer's CSV.")
@click.option("--verbose-csv", is_flag=True, help="With perf_analyzer's additional columns.")
@click.option(
    "--profile-export-file",
    "profile_file",
    type=_FILE,
    metavar="FILE",
    help="Write the times and tensors of every request, in perf_analyzer's JSON.",
)
@json_option("json_file")
@click.option("--report", "html_file", type=_FILE, metavar="FILE", help="Write a page with plots: one HTML file, without links.")
@click.option("--seed", default=0, show_default=True, type=int, metavar="N", help="Seed of random data and times.")
@click.option("-a", "--async", "ignored_async", is_flag=True, hidden=True)
@click.option("--sync", "ignored_sync", is_flag=True, hidden=True)
@click.option("--serial-sequences", "ignored_serial", is_flag=True, hidden=True)
@click.option("--max-threads", "ignored_threads", type=int, hidden=True)
@click.option("-v", "ignored_verbose", count=True, hidden=True)
@click.option("--model-signature-name", "ignored_signature", hidden=True)
@click.option("-t", "old_concurrency", type=click.IntRange(1), hidden=True)
@click.option("-c", "old_concurrency_max", default=0, type=click.IntRange(0), hidden=True)
@click.option("-d", "old_dynamic", is_flag=True, hidden=True)
@click.option("-z", "old_zero", is_flag=True, hidden=True)
@click.option("--data-directory", "old_folder", default="", hidden=True)
def perf(**given: Any) -> None:
    """Measure a model on a running server: any that speaks KServe v2 (Triton, tpy), or OpenAI's API. Flags are perf_analyzer's.

    The table goes to standard output, progress to standard error. Ctrl-C ends the measurement and shows what was measured. Exit
    status 0; 1 for wrong flags, data that do not fit, or no server; 2 when a result is not stable; 3 when requests failed or the
    server was lost; 130 after Ctrl-C.
    """
    from tpy_tools.commands.perf.command import _without_old
    from tpy_tools.commands.perf.options import PerfOptions
    from tpy_tools.commands.perf.running import run

    name = given.pop("name") or given["model"]
    if not name:
        raise click.UsageError("name a model: tpy perf MODEL")
    if given["model"] not in ("", name):
        raise click.UsageError(f"two models are named, {name} and {given['model']} (-m): name one")
    sys.exit(run(PerfOptions(**_without_old({**given, "model": name}))))

"""`tpy analyze`: its options."""

from __future__ import annotations

import sys

import click

from tpy.cli.parsing import FiniteRange
from tpy_tools.commands.connecting import header_option


@click.command()
@click.argument("model", nargs=-1)
@click.option(
    "--model-repository", multiple=True, metavar="DIRECTORY", type=click.Path(), help="Start a server for these models."
)
@click.option(
    "-u",
    "--url",
    metavar="HOST:PORT",
    help="Use a running server in mode explicit: its HTTP address. Its models are left as they were.",
)
@header_option
@click.option("--grpc-url", metavar="HOST:PORT", help="Its gRPC address, for --protocol grpc. Default: port 8001.")
@click.option(
    "-f",
    "--config-file",
    metavar="FILE",
    type=click.Path(),
    help="A configuration file of Model Analyzer (YAML). Options given here take precedence.",
)
@click.option(
    "--objective",
    default="throughput",
    show_default=True,
    metavar="NAME[:WEIGHT],...",
    help="throughput, latency, memory, or Model Analyzer's metrics.",
)
@click.option("--latency-ms", type=FiniteRange(min=0, min_open=True), metavar="MS", help="Maximum latency.")
@click.option(
    "--percentile",
    type=click.Choice(["50", "90", "95", "99"]),
    default="99",
    show_default=True,
    help="Latency percentile that --latency-ms bounds.",
)
@click.option("--memory-mb", type=FiniteRange(min=0, min_open=True), metavar="MB", help="Maximum memory of the model.")
@click.option("--min-throughput", type=FiniteRange(min=0), metavar="N", help="Minimum inferences per second.")
@click.option(
    "--search",
    type=click.Choice(["quick", "brute", "optuna"]),
    default="quick",
    show_default=True,
    help="Hill climbing, every configuration, or Optuna's sampler (the extra optuna).",
)
@click.option(
    "--optuna-max-trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum number of measurements of --search optuna. [default: a tenth of all]",
)
@click.option(
    "--optuna-early-exit-threshold",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Measurements without a gain after which --search optuna ends.",
)
@click.option(
    "--together",
    is_flag=True,
    help="Several models: all under load at the same time, on one server. Their goals are weighed against each other.",
)
@click.option("--instances", default="1:4", show_default=True, metavar="N,N:N", help="Instances to try.")
@click.option("--batches", default="1,4,8,16", show_default=True, metavar="N,N:N:*N", help="Values of max_batch_size to try.")
@click.option(
    "--delays",
    default="off,0,100,500",
    show_default=True,
    metavar="US,...",
    help="Microseconds of queue delay to try; off: no dynamic batching.",
)
@click.option(
    "--threads",
    default="auto",
    show_default=True,
    metavar="N,...",
    help="Threads of an execution to try; auto: up to this machine's cores, for backends that have such a parameter.",
)
@click.option("--preferred", metavar="N,...", help="Values of preferred_batch_size to try.")
@click.option("--kinds", metavar="KIND,...", help="Kinds of instances to try: KIND_CPU, KIND_GPU.")
@click.option(
    "--parameter",
    multiple=True,
    metavar="NAME=VALUE,...",
    help="Values of a backend's parameter to try, as intra_op_thread_count=1,2.",
)
@click.option(
    "--field",
    multiple=True,
    metavar="NAME=JSON",
    help='A list of values of any other field of the configuration: \'optimization=[{"priority": "PRIORITY_MAX"}]\'.',
)
@click.option(
    "--members",
    metavar="NAME,...",
    help="Further models whose settings are varied: an ensemble's members (the default), or models that the model calls.",
)
@click.option("--concurrency", default="1:64:*2", show_default=True, metavar="N,N:N:*N", help="Clients at a time.")
@click.option(
    "--rate",
    metavar="N,N:N:*N",
    help="Requests started per second, whether earlier ones are answered or not, instead of clients.",
)
@click.option(
    "-i",
    "--protocol",
    type=click.Choice(["http", "grpc"], case_sensitive=False),
    default="http",
    show_default=True,
    help="Protocol of the requests.",
)
@click.option("--streaming", is_flag=True, help="Use ModelStreamInfer, as always for decoupled models. Needs --protocol grpc.")
@click.option("-b", "--batch-size", default="1", show_default=True, metavar="N,...", help="Inferences in a request.")
@click.option(
    "--sequence-length",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Requests of a sequence, for models that keep state. [default: 20, or as many as the data have]",
)
@click.option(
    "--input-data", default="random", show_default=True, metavar="zero|random|FILE", help="FILE: JSON in perf_analyzer's format."
)
@click.option("--shape", multiple=True, metavar="NAME:N,N", help="Sizes of an input that the model leaves open.")
@click.option(
    "-p",
    "--measurement-interval",
    type=click.IntRange(min=10),
    default=1000,
    show_default=True,
    metavar="MS",
    help="Length of a measurement window; windows are repeated until three are stable.",
)
@click.option(
    "-s",
    "--stability-percentage",
    type=FiniteRange(0),
    default=10,
    show_default=True,
    metavar="PERCENT",
    help="Largest difference between stable windows.",
)
@click.option(
    "-r",
    "--max-trials",
    type=click.IntRange(min=3),
    default=10,
    show_default=True,
    metavar="N",
    help="Maximum number of windows.",
)
@click.option("--server-flag", multiple=True, metavar="FLAG", help="A flag of tpy serve for the server that is started.")
@click.option(
    "-o",
    "--output",
    metavar="DIRECTORY",
    type=click.Path(),
    help="Folder for results, and for checkpoints that an interrupted run resumes from. Default: tpy-analyze/MODEL",
)
@click.option(
    "--checkpoint-directory", metavar="DIRECTORY", type=click.Path(), help="Folder for checkpoints, if they go elsewhere."
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document in place of the table.")
def analyze(model: tuple[str, ...], **given: object) -> None:
    """Find the best configuration of a model under bounds of latency and memory: measures instances, batches, delays and threads
    under load, and writes a config.pbtxt. Nothing in the repository is changed. Exit status 1 when no configuration meets the
    bounds."""
    from click.core import ParameterSource

    from tpy_tools.commands.analyze_run import run

    source = click.get_current_context().get_parameter_source
    sys.exit(run(model, given, is_given=lambda name: source(name) is ParameterSource.COMMANDLINE))

"""`tpy analyze`: its options."""

from __future__ import annotations

import sys

import click

from tpy.cli.connecting import header_option
from tpy.cli.parsing import FiniteRange


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
    help="A configuration file of Model Analyzer (YAML). Options given here win.",
)
@click.option(
    "--objective",
    default="throughput",
    show_default=True,
    metavar="NAME[:WEIGHT],...",
    help="throughput, latency, memory, or Model Analyzer's metrics.",
)
@click.option("--latency-ms", type=FiniteRange(min=0, min_open=True), metavar="MS", help="Bound of the latency.")
@click.option(
    "--percentile",
    type=click.Choice(["50", "90", "95", "99"]),
    default="99",
    show_default=True,
    help="The one that --latency-ms bounds.",
)
@click.option("--memory-mb", type=FiniteRange(min=0, min_open=True), metavar="MB", help="Bound of the model's memory.")
@click.option("--min-throughput", type=FiniteRange(min=0), metavar="N", help="Inferences per second that there must be.")
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
    help="Measurements of --search optuna at most. [default: a tenth of all]",
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
    help="Models whose settings are varied: those of an ensemble by default; those that a model calls.",
)
@click.option("--concurrency", default="1:64:*2", show_default=True, metavar="N,N:N:*N", help="Clients at a time.")
@click.option("--rate", metavar="N,N:N:*N", help="Requests per second that begin whatever the answers do, in place of clients.")
@click.option(
    "-i",
    "--protocol",
    type=click.Choice(["http", "grpc"], case_sensitive=False),
    default="http",
    show_default=True,
    help="Of the requests.",
)
@click.option("--streaming", is_flag=True, help="ModelStreamInfer, as decoupled models are always asked. Needs --protocol grpc.")
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
    help="Windows of a measurement, until three are stable.",
)
@click.option(
    "-s",
    "--stability-percentage",
    type=FiniteRange(0),
    default=10,
    show_default=True,
    metavar="PERCENT",
    help="Stable windows differ by no more.",
)
@click.option(
    "-r", "--max-trials", type=click.IntRange(min=3), default=10, show_default=True, metavar="N", help="Windows at most."
)
@click.option("--server-flag", multiple=True, metavar="FLAG", help="A flag of tpy serve for the server that is started.")
@click.option(
    "-o",
    "--output",
    metavar="DIRECTORY",
    type=click.Path(),
    help="Results, and what an interrupted run goes on from. Default: tpy-analyze/MODEL",
)
@click.option(
    "--checkpoint-directory", metavar="DIRECTORY", type=click.Path(), help="What an interrupted run goes on from, elsewhere."
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document in place of the table.")
def analyze(model: tuple[str, ...], **given: object) -> None:
    """Find the best configuration of a model under bounds of latency and memory: measures instances, batches, delays and threads
    under load, and writes a config.pbtxt. Nothing in the repository is changed. Exit status 1 when no configuration meets the
    bounds."""
    from click.core import ParameterSource

    from tpy.cli.analyze_run import run

    source = click.get_current_context().get_parameter_source
    sys.exit(run(model, given, is_given=lambda name: source(name) is ParameterSource.COMMANDLINE))

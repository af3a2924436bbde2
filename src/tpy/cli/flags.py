"""The flags of `tpy serve`: one table, from which parser, help, environment variables and the reference page are made.

Spellings and defaults are Triton's. Every flag of Triton's is known and has a support:

* HONOURED: does what Triton's does.
* IGNORED: has no meaning here (a thread pool that we do not have, say): accepted, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpy import limits
from tpy.cli.resource_flags import RESOURCE_FLAGS
from tpy.flag import INT64_MAX, Flag, Support
from tpy.flag import new_flag as _flag
from tpy.frontends.table import frontends
from tpy.messages.server import LOG_FORMATS
from tpy.telemetry.access_log import ACCESS_LOG_FORMATS

FLAGS: tuple[Flag, ...] = (
    # General
    _flag("General", "id", "triton", "Name of this server, as GET /v2 reports it."),
    _flag(
        "General", "exit-timeout-secs", 30, "Seconds that requests in flight get to finish after Ctrl-C or SIGTERM.", minimum=0
    ),
    _flag(
        "General",
        "exit-delay-secs",
        0,
        "Seconds after Ctrl-C or SIGTERM in which the server reports not ready but still serves, new connections too, so that "
        "load balancers notice; then --exit-timeout-secs begins. An addition of tpy.",
        minimum=0,
    ),
    _flag(
        "General",
        "allow-usage-data",
        False,
        "Let libraries send usage data to their makers, as ONNX Runtime does elsewhere. An addition of tpy.",
    ),
    _flag(
        "General",
        "frontend-processes",
        0,
        "Processes that serve HTTP and gRPC; 0: the server's own. An addition of tpy.",
        minimum=0,
        maximum=limits.FRONTEND_PROCESSES_MAX,
    ),
    _flag("General", "exit-on-error", True, "Exit when a model fails to load at start-up. Otherwise serve the others."),
    _flag(
        "General",
        "serve-while-loading",
        False,
        "Open all ports before the start-up models have loaded. Otherwise HTTP answers only health checks until then. An "
        "addition of tpy.",
    ),
    _flag(
        "General",
        "strict-readiness",
        True,
        "Report ready only when models are ready. Otherwise as soon as the server answers.",
    ),
    _flag(
        "General",
        "readiness",
        "serving",
        "Models that a strict server waits for. serving: models that load at the start and models that have served. all-models: "
        "all of the repository, even with broken files. An addition of tpy.",
        choices=("serving", "all-models"),
    ),
    # Access
    _flag(
        "Access",
        "auth-config",
        "",
        "File with API keys, tokens and their roles, in TOML or JSON. Read again at SIGHUP. An addition of tpy.",
        metavar="FILE",
    ),
    _flag(
        "Access",
        "auth-required",
        False,
        "Require a credential for everything except the live and ready checks. An addition of tpy.",
    ),
    _flag(
        "Access",
        "tenants-file",
        "",
        "File with the tenants of the server: their keys, tokens or header, weights and limits, in TOML or JSON. Read again when "
        "it changes. An addition of tpy.",
        metavar="FILE",
    ),
    _flag(
        "Access",
        "allowed-origin",
        (),
        "Origin of other web pages that may load models and change settings through a browser. Repeat it for several. An "
        "addition of tpy.",
        metavar="SCHEME://HOST[:PORT]",
    ),
    _flag(
        "Access",
        "allowed-host",
        (),
        "Host name under which browsers may do that, and any client at --management-address, besides addresses, names without a "
        "domain and this machine's names. Repeat it for several. An addition of tpy.",
        metavar="NAME",
    ),
    # Logging
    _flag("Logging", "log-verbose", 0, "Verbosity: messages of level <= N are shown; 0 shows none.", minimum=0, switches=True),
    _flag("Logging", "log-info", True, "Log informational messages."),
    _flag("Logging", "log-warning", True, "Log warnings."),
    _flag("Logging", "log-error", True, "Log errors."),
    _flag(
        "Logging",
        "log-format",
        "default",
        "Line format; json (an object per line) and plain (for people) are additions of tpy.",
        choices=LOG_FORMATS,
    ),
    _flag("Logging", "log-file", "", "Write the log to this file instead of standard error.", metavar="FILE"),
    _flag(
        "Logging",
        "access-log",
        "",
        "Write a line for each request to this file, - for standard output. An addition of tpy.",
        metavar="FILE",
    ),
    _flag(
        "Logging",
        "access-log-format",
        "text",
        "Format of access log lines; json: an object per line. An addition of tpy.",
        choices=ACCESS_LOG_FORMATS,
    ),
    _flag("Logging", "access-log-sample", 1, "One in N requests gets a line. An addition of tpy.", minimum=1),
    _flag(
        "Logging",
        "slow-request-ms",
        0,
        "Warn of each request that takes N milliseconds or more, with the times of its phases; 0: never. An addition of tpy.",
        minimum=0,
    ),
    _flag(
        "Logging",
        "audit-log",
        "",
        "Write a JSON line for each change of models or settings to this file, - for standard error: who, from where, what, "
        "result. An addition of tpy.",
        metavar="FILE",
    ),
    _flag(
        "Logging",
        "audit-log-required",
        False,
        "Refuse changes that the audit log cannot take, as on a full disk. An addition of tpy.",
    ),
    # Model repository
    _flag(
        "Model repository",
        "model-repository",
        (),
        "A model repository: a folder, or an address that begins with s3://, gs://, as:// or oss://. Repeat it for several.",
        aliases=("model-store",),
        metavar="DIRECTORY",
    ),
    _flag(
        "Model repository",
        "model-name",
        "",
        "The model's name where DIRECTORY is a single model, in place of its folder's or file's; ignored for a repository. An "
        "addition of tpy.",
    ),
    _flag(
        "Model repository",
        "model-control-mode",
        "none",
        "none: load all at start. poll: also follow changes on disk. explicit: load on request. on-demand, an addition of tpy: "
        "load a model when it is asked for inference, within --model-memory-budget.",
        choices=("none", "poll", "explicit", "on-demand"),
    ),
    _flag(
        "Model repository",
        "model-memory-budget",
        "",
        "Memory of the host that all models together may take, such as 20GiB: models with the parameter `load: on_demand` are "
        "loaded when they are asked for and unloaded to make room. Without it all models stay loaded. An addition of tpy.",
        metavar="SIZE",
    ),
    _flag(
        "Model repository",
        "model-gpu-memory-budget",
        (),
        "Memory of one GPU that all models together may take, such as 0:20GiB, beside --model-memory-budget; once for each GPU. "
        "GPUs without it are not counted. An addition of tpy.",
        metavar="DEVICE:SIZE",
    ),
    _flag(
        "Model repository",
        "model-load-wait-secs",
        60,
        "Seconds that a request waits for a model that is loaded on demand; then it is refused. An addition of tpy.",
        minimum=1,
    ),
    _flag(
        "Model repository",
        "model-sizes-file",
        "",
        "File that keeps how much memory models took when they were loaded, for the next start with --model-memory-budget. An "
        "addition of tpy.",
        metavar="FILE",
    ),
    _flag(
        "Model repository",
        "repository-poll-secs",
        15,
        "Seconds between polls in mode poll, at least 1 there. Changes that the system announces are seen sooner.",
        minimum=0,
    ),
    _flag(
        "Model repository",
        "repository-settle-ms",
        1000,
        "Milliseconds for which a changed model must stay the same before mode poll loads it (in the cloud: before any mode "
        "does), because files are copied bit by bit. An addition of tpy.",
        minimum=0,
        maximum=3_600_000,
    ),
    _flag(
        "Model repository",
        "repository-hold-losses",
        True,
        "In mode poll, when most models of a repository disappear at once, as with a lost disk or bucket, keep serving them "
        "until they have been missing for two polls, or until SIGHUP. An addition of tpy.",
    ),
    _flag(
        "Model repository",
        "repository-cache",
        "",
        "Keep local copies of the models of repositories in the cloud here: the next start downloads what has changed, and "
        "nothing while the cloud is away. Otherwise a copy is removed when its model is unloaded. An addition of tpy.",
        metavar="DIRECTORY",
    ),
    _flag(
        "Model repository",
        "repository-cache-byte-size",
        limits.CLOUD_CACHE_BYTES_DEFAULT,
        "Size limit of all local copies. Models that are not served make room for others. An addition of tpy.",
        minimum=1,
        maximum=INT64_MAX,
    ),
    _flag(
        "Model repository",
        "repository-start-secs",
        30,
        "Seconds to keep trying a cloud repository that does not answer at start-up. An addition of tpy.",
        minimum=0,
    ),
    _flag(
        "Model repository",
        "load-model",
        (),
        "Model to load at start in mode explicit. Repeat it for several; * alone loads all.",
        metavar="NAME",
    ),
    _flag(
        "Model repository",
        "model-config-name",
        "",
        "Use configs/NAME.pbtxt of a model where it exists, else its config.pbtxt.",
        metavar="NAME",
    ),
    _flag(
        "Model repository", "disable-auto-complete-config", False, "Take configurations as written; fill in nothing from models."
    ),
    _flag(
        "Model repository",
        "strict-model-config",
        False,
        "Deprecated spelling: true is --disable-auto-complete-config.",
        successor="--disable-auto-complete-config",
    ),
    _flag("Model repository", "model-load-thread-count", 4, "Models that load at the same time.", minimum=1, maximum=256),
    _flag(
        "Model repository",
        "rollout-file",
        "",
        "File that keeps how far rollouts of new versions are (model parameter `rollout`): a restarted server goes on there. "
        "Without it each start begins with the newest version of a model. An addition of tpy.",
        metavar="FILE",
    ),
    _flag(
        "Model repository",
        "batching-curves-file",
        "",
        "File that keeps what batches of models with `batching: auto` cost: the next start goes on with it, as long as the "
        "model's files and configuration are the same. Written when such models are unloaded. An addition of tpy.",
        metavar="FILE",
    ),
    _flag("Model repository", "model-load-retry-count", 0, "How often a failed load is retried, without a pause.", minimum=0),
    _flag("Model repository", "model-namespacing", False, "Allow the same model name in several repositories."),
    _flag(
        "Model repository",
        "enable-peer-access",
        True,
        "Direct copies between GPUs.",
        why="onnxruntime decides how devices exchange memory",
        support=Support.IGNORED,
    ),
    *(flag for frontend in frontends().values() for flag in frontend.flags),
    # Metrics
    _flag("Metrics", "allow-cpu-metrics", True, "Include the machine's CPU and memory."),
    _flag("Metrics", "allow-gpu-metrics", True, "Include GPUs; on a machine with GPUs this needs the package nvidia-ml-py."),
    _flag("Metrics", "metrics-interval-ms", 2000, "Milliseconds between samples of the machine and its GPUs.", minimum=1),
    _flag(
        "Metrics",
        "metrics-config",
        (),
        "counter_latencies=true|false, histogram_latencies=true|false, summary_latencies=true|false, "
        "summary_quantiles=QUANTILE:ERROR,... Repeat it for several.",
        metavar="NAME=VALUE",
    ),
    # Tracing
    _flag(
        "Tracing",
        "trace-config",
        (),
        "Settings of traces: mode=, level=, rate=, count=; triton,file=, triton,log-frequency=; opentelemetry,url= and others. "
        "Repeat it for several.",
        metavar="[MODE,]KEY=VALUE",
    ),
    _flag(
        "Tracing",
        "trace-file",
        "",
        "Deprecated: as --trace-config triton,file=FILE.",
        successor="--trace-config triton,file=FILE",
        metavar="FILE",
    ),
    _flag(
        "Tracing",
        "trace-level",
        (),
        "Deprecated: as --trace-config level=LEVEL.",
        successor="--trace-config level=LEVEL",
        metavar="LEVEL",
    ),
    _flag("Tracing", "trace-rate", 1000, "Deprecated: as --trace-config rate=N.", successor="--trace-config rate=N"),
    _flag("Tracing", "trace-count", -1, "Deprecated: as --trace-config count=N.", successor="--trace-config count=N"),
    _flag(
        "Tracing",
        "trace-log-frequency",
        0,
        "Deprecated: as --trace-config triton,log-frequency=N.",
        successor="--trace-config triton,log-frequency=N",
    ),
    _flag(
        "Tracing",
        "recording-directory",
        "",
        "Folder for recordings of requests, which clients start and stop (tpy record); without it recording is off. An addition "
        "of tpy.",
        metavar="DIRECTORY",
    ),
    # Backends
    _flag(
        "Backends",
        "backend-directory",
        "/opt/tritonserver/backends",
        "Folder of further backends: DIRECTORY/NAME/libtriton_NAME.so (compiled) or DIRECTORY/NAME/model.py (Python-based).",
        metavar="DIRECTORY",
    ),
    _flag(
        "Backends",
        "backend-config",
        (),
        "Setting of a backend; without a backend's name, of all.",
        metavar="[BACKEND,]KEY=VALUE",
    ),
    _flag(
        "Backends",
        "repoagent-directory",
        "/opt/tritonserver/repoagents",
        "Folder of compiled repository agents: DIRECTORY/NAME/libtritonrepoagent_NAME.so.",
        metavar="DIRECTORY",
    ),
    _flag(
        "Backends",
        "repoagent-timeout-secs",
        limits.AGENT_ACTION_S_MAX_DEFAULT,
        "Seconds that a repository agent has for one action on a model; an agent that takes longer is ended.",
        minimum=1,
    ),
    *RESOURCE_FLAGS,
)
"""Every flag, in the order of the help and of the reference page."""

FLAG_BY_NAME: dict[str, Flag] = {name: flag for flag in FLAGS for name in (flag.name, *flag.aliases)}
"""Spelling, without dashes, to flag."""

MOST_USED: Sequence[str] = (
    *("model-repository", "model-control-mode", "repository-poll-secs", "load-model", "model-load-thread-count"),
    *("exit-on-error", "serve-while-loading", "strict-readiness", "readiness", "exit-timeout-secs", "exit-delay-secs", "id"),
    *("http-address", "http-port", "allow-http", "grpc-address", "grpc-port", "allow-grpc", "metrics-port", "allow-metrics"),
    *("page-on-http", "management-address", "allow-openai", "openai-port", "auth-config", "frontend-processes"),
    *("log-verbose", "log-format", "log-file", "access-log", "slow-request-ms", "trace-config", "metrics-config"),
    *("backend-config", "cache-config", "request-timeout", "rate-limit", "allow-client-shm", "pinned-memory-pool-byte-size"),
)
"""Come first in the help."""

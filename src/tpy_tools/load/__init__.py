"""Load for any server of the KServe v2 protocol: clients, schedules and statistics. A library; `tpy perf` is its command.

A client in steps, all of them without Trio, for programs that do nothing else:

* `Target` says which server and which protocol: "http", "grpc", "grpc-stream" (ModelStreamInfer), "sse" (answers in pieces).
* `MeasuredServer(target)` asks for metadata, configuration and statistics of a model.
* `PlannedCall` is a request of tensors; `encode_http` and `encode_grpc` make a `Template` of it, whose `fill` gives the bytes,
  with a place in a sequence where wanted. `read_http` and `read_grpc` give the tensors of an answer.
* `Driver(target, schedule, calls, observer, slots=...)` runs in the caller's thread until the schedule is done: it begins a
  request whenever `schedule.take(now_ns)` says so (`ClosedLoop`, `OpenLoop`, or a class of the caller's), takes its bytes from
  `calls` (the caller's number, and the bytes), and hands the answer with that number, `slot.call`, to `observer`.
* `Meter(load, rules).measure(level)` does this in separate processes, in windows until they are stable, and returns a
  `LevelResult`: histograms of latencies, throughput, errors, the server's statistics, CPU time and memory.
  `measure_together(meters, level)` measures several loads at the same time.

`core/` has what decides and what reads bytes, without clocks and sockets. Nothing here knows tpy's server: no model is loaded, no
configuration changed.
"""

from tpy_tools.load.calls import (
    GrpcTemplate,
    HttpTemplate,
    PlannedCall,
    RawTemplate,
    SequencePlace,
    Template,
    encode_grpc,
    encode_http,
    error_text,
    read_grpc,
    read_http,
)
from tpy_tools.load.core.answers import AnswerPart, BrokenAnswer
from tpy_tools.load.core.histogram import LatencyHistogram
from tpy_tools.load.core.schedules import ClosedLoop, OpenLoop, Schedule
from tpy_tools.load.driving import SUCCESS, CallSource, Driver, Observer, ServerLost, Slot
from tpy_tools.load.exchange import SequenceSettings
from tpy_tools.load.links import Target, Tls
from tpy_tools.load.measuring import Level, LevelResult, Meter, Rules, Workload, measure_together
from tpy_tools.load.server import MeasuredServer, ModelFacts, ServerError, ServerStatistics

__all__ = [
    "SUCCESS",
    "AnswerPart",
    "BrokenAnswer",
    "CallSource",
    "ClosedLoop",
    "Driver",
    "GrpcTemplate",
    "HttpTemplate",
    "LatencyHistogram",
    "Level",
    "LevelResult",
    "MeasuredServer",
    "Meter",
    "ModelFacts",
    "Observer",
    "OpenLoop",
    "PlannedCall",
    "RawTemplate",
    "Rules",
    "Schedule",
    "SequencePlace",
    "SequenceSettings",
    "ServerError",
    "ServerLost",
    "ServerStatistics",
    "Slot",
    "Target",
    "Template",
    "Tls",
    "Workload",
    "encode_grpc",
    "encode_http",
    "error_text",
    "measure_together",
    "read_grpc",
    "read_http",
]

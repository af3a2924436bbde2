"""The flags of `tpy serve` for the response cache, the rate limiter, memory and devices: a part of the table of flags."""

from __future__ import annotations

from tpy.flag import INT64_MAX, Flag, Support
from tpy.flag import new_flag as _flag

RESOURCE_FLAGS: tuple[Flag, ...] = (
    # Response cache, rate limiter
    _flag(
        "Response cache",
        "cache-config",
        (),
        "Cache the answers of models with response_cache: local,size=BYTES in this process, redis,host=HOST,port=PORT[,...], or "
        "a compiled cache with its settings.",
        metavar="CACHE,SETTING=VALUE",
    ),
    _flag(
        "Response cache",
        "cache-directory",
        "/opt/tritonserver/caches",
        "Folder of compiled caches: DIRECTORY/NAME/libtritoncache_NAME.so.",
        metavar="DIRECTORY",
    ),
    _flag(
        "Response cache",
        "response-cache-byte-size",
        0,
        "Deprecated spelling of --cache-config=local,size=N.",
        successor="--cache-config=local,size=N",
        minimum=0,
        maximum=INT64_MAX,
    ),
    _flag(
        "Rate limiter",
        "rate-limit",
        "off",
        "execution_count: an instance runs when the resources that its group asks for are free. off: as soon as it is ready.",
        choices=("execution_count", "off"),
    ),
    _flag(
        "Rate limiter",
        "rate-limit-resource",
        (),
        "How much there is of a resource, on each device or on one. Default: what the most demanding instance asks for.",
        metavar="NAME:COUNT[:DEVICE]",
    ),
    _flag(
        "Requests",
        "request-timeout",
        "queue",
        "queue: a request's timeout counts only in queues whose policy allows it. enforce, an addition of tpy: it ends the "
        "request, wherever it is. The parameter TPY_REQUEST_TIMEOUT sets this for one model.",
        choices=("queue", "enforce"),
    ),
    _flag(
        "Requests",
        "instance-restart-wait",
        5,
        "Seconds that requests wait while a model's only instance, which has failed, is restarted. 0: refuse them at once. An "
        "addition of tpy.",
        minimum=0,
        maximum=3600,
    ),
    _flag(
        "Requests",
        "crash-loop-failures",
        0,
        "Failures of an instance within --crash-loop-minutes that make a crash loop: it is then restarted after growing pauses, "
        "and a model without another instance is unavailable meanwhile. 0: never. An addition of tpy.",
        minimum=0,
        maximum=1000,
    ),
    _flag(
        "Requests",
        "crash-loop-minutes",
        5,
        "The period in which --crash-loop-failures counts. An addition of tpy.",
        minimum=1,
        maximum=1440,
    ),
    # Memory and devices
    _flag(
        "Memory",
        "pinned-memory-pool-byte-size",
        268_435_456,
        "Bytes of pinned memory for tensors on their way to and from GPUs; beyond that, ordinary memory is used.",
        maximum=INT64_MAX,
    ),
    _flag(
        "Memory",
        "cuda-memory-pool-byte-size",
        (),
        "Bytes of a GPU's memory for tensors that stay on it. Default: 67108864. Beyond that, memory is allocated from the GPU.",
        metavar="DEVICE:BYTES",
    ),
    _flag(
        "Memory",
        "cuda-virtual-address-size",
        (),
        "GPU addresses.",
        why="onnxruntime manages GPU memory itself",
        support=Support.IGNORED,
    ),
    _flag(
        "Memory",
        "min-supported-compute-capability",
        "6.0",
        "GPUs of an older compute capability are not used.",
        metavar="NUMBER",
    ),
    _flag(
        "Memory",
        "buffer-manager-thread-count",
        0,
        "Copy threads.",
        why="inputs are gathered by the instance's thread",
        support=Support.IGNORED,
    ),
    _flag(
        "Memory",
        "host-policy",
        (),
        "CPU cores (cpu-cores=0-3,8-11) or memory node (numa-node=0) of the instances whose groups name the policy, or whose "
        "default it is: cpu, model, gpu_N.",
        metavar="POLICY,SETTING=VALUE",
    ),
    _flag(
        "Memory",
        "model-load-gpu-limit",
        (),
        "Share of a GPU's memory (0 to 1) that may be in use: an instance that exceeds it is refused.",
        metavar="DEVICE:FRACTION",
    ),
    _flag(
        "Memory",
        "allow-client-shm",
        False,
        "Clients may register system shared memory, and exchange tensors through it. They can then make the server read and "
        "write any segment that it may open.",
    ),
)

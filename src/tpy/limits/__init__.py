"""All bounds of the server, each with the reason for its value. Areas with many bounds have separate modules."""

from __future__ import annotations

from typing import Final

from tpy.limits.cloud import *  # noqa: F403
from tpy.limits.engines import *  # noqa: F403
from tpy.limits.grpc import *  # noqa: F403
from tpy.limits.http import *  # noqa: F403
from tpy.limits.observing import *  # noqa: F403
from tpy.limits.on_demand import *  # noqa: F403
from tpy.limits.rollouts import *  # noqa: F403
from tpy.units import GIB, KIB, MIB, NS_PER_MS, NS_PER_S

REQUEST_BODIES_BYTES_MAX: Final = 2048 * MIB
"""Request bodies that are being received or decoded, of all HTTP connections of a process together; what goes beyond it is
refused (503), as waiting for others to end could mean waiting for bodies that never end. Each counts with what has arrived, from
64 KiB on: 170 images of 12 MB at the same moment, or 32 bodies of the largest default size. Not less than one body may have."""

ECHO_CHARACTERS_MAX: Final = 1024
"""Characters of one name, id or value that an error text or a log line repeats: far above real ones, far below a request."""

ECHO_LIST_CHARACTERS_MAX: Final = 4096
"""The same for a list of them."""

ERROR_CHARACTERS_MAX: Final = 64 * KIB
"""A whole error text, whoever made it: room for a long traceback of a model."""

TENSORFLOW_CALLABLES_MAX: Final = 16
"""Choices of outputs for which an instance of a TensorFlow model keeps a compiled call: clients of one model ask for few. The
oldest goes when another comes."""

MODEL_THREADS_MAX: Final = 1024
"""In a pool of threads that a configuration asks for: more than any machine's cores are good for. DALI ends the process when the
system gives it no more threads, and TensorFlow starts as many as it is told."""

NATIVE_BUILD_S_MAX: Final = 300.0
"""Building the C library for compiled plug-ins, once: seconds on any machine; what takes longer hangs."""

NATIVE_REPOSITORY_CALL_S_MAX: Final = 3600.0
"""A compiled plug-in that has a model loaded, or asks whether one is ready, waits for so long: longer than any load, so that a
thread of its is not lost for ever where the server forgets the call."""

AGENT_ACTION_S_MAX_DEFAULT: Final = 300
"""--repoagent-timeout-secs, for one action of a repository agent: to decrypt a large model, say. Other models of the agent wait
meanwhile, so one that takes longer is ended."""

AGENT_REPLY_BYTES_MAX: Final = 1 * MIB
"""An answer of the process of a repository agent: a path, or an error text."""

MODEL_NAME_BYTES_MAX: Final = 255
"""The name of a model to load: it is the name of a folder, which file systems bound so."""

ACCEPT_PAUSE_S: Final = 0.1
"""Pause of a port that cannot accept connections, for want of file descriptors or memory, before it tries again."""

ACCEPTED_CONNECTIONS_MAX: Final = 16
"""Connections that a port accepts in one turn of the loop. Setting one up takes 0.2 ms."""

ACCEPT_WARNING_PAUSE_S: Final = 60.0
"""Between two log lines about such a port."""

REGIONS_MAX: Final = 4096
"""Shared memory regions that clients may have registered. Each is an open file, so where the system allows few of those it is
REGIONS_OPEN_FILES_SHARE of them, that connections find some, too."""

REGIONS_OPEN_FILES_SHARE: Final = 0.25

REGION_NAME_CHARACTERS_MAX: Final = 1024
"""Characters of a region's name, which every status shows."""

REGION_COPIES_BYTES_MAX: Final = 4096 * MIB
"""Tensors of requests that were copied out of regions and are not forgotten yet, of a process: a request of a hundred bytes may
name a tensor of any size. Twice the largest tensor that gRPC carries."""

REGION_INLINE_BYTES_MAX: Final = MIB
"""A tensor up to this size is copied out of a region, or into it, on the loop (a tenth of a millisecond), else in a thread."""

REGION_INLINE_STRING_BYTES_MAX: Final = 64 * KIB
"""The same of BYTES tensors, whose elements become objects one by one (a millisecond)."""

REGION_UNEXPLAINED_SIGNALS_MAX: Final = 64
"""SIGBUS signals in a row that no copy of a region explains. One may come late, after its cause was repaired; a thread that keeps
getting it has another cause, and the process ends as it does without regions."""

REGION_SIGNALS_APART_S_MAX: Final = 0.1
"""Between two of them. A thread that keeps getting the signal gets it again at once; a client that makes its segment shorter and
longer all the time leaves some that are further apart."""

CUDA_GRAPHS_MAX: Final = 64
"""Shapes of batches of an ONNX instance that are captured as CUDA graphs: each keeps separate buffers on the device. Other
shapes run as without graphs."""

OPEN_FILES_WANTED: Final = 65_536
"""Open files that `tpy serve` asks the system for, as far as its hard limit goes: each connection is one, and the usual soft
limit of 1,024 is for programs that use select(2)."""

DOCTOR_OPEN_FILES_MIN: Final = 4096

DOCTOR_MEMORY_BYTES_MIN: Final = 512 * MIB

DOCTOR_SHARED_MEMORY_BYTES_MIN: Final = 128 * MIB

DOCTOR_PROCESSES_MIN: Final = 512

DOCTOR_DISK_BYTES_MIN: Final = 1024 * MIB
"""Below these `tpy doctor` warns: some thousand connections, a server with small models, and some batches of images for workers,
some hundred threads, a model from the cloud; what containers are given by default in /dev/shm is 64 MiB."""

LOAD_OVERRIDE_BYTES_MAX: Final = 2048 * MIB
"""Sum of the `file:` overrides in one load call."""

LOAD_OVERRIDE_FILES_MAX: Final = 4096
"""Files in one load call: models have tens. Each is written, and looked at again."""

CONFIG_BYTES_MAX: Final = MIB
"""Size of a config.pbtxt or of a `config` override: room for ensembles of thousands of steps. The worst text of this size takes
seconds to read (in a thread), and one of 16 MiB would take minutes."""

DALI_SERIALIZE_S_MAX: Final = 60
"""For the program that serializes a pipeline from its Python file: importing DALI and the file takes a second or two."""

WORKER_RESTART_BACKOFF_S_MIN: Final = 1
"""Between the start of an instance and its restart at the earliest, when it failed once. One that has lived longer is started
again at once: whoever makes it fail with requests costs the host one start a second at most."""

WORKER_RESTART_BACKOFF_S_MAX: Final = 60
"""The pause doubles with each failure in a row up to this."""

CRASH_LOOP_PAUSE_S_MIN: Final = 8
"""The first pause in a crash loop (--crash-loop-failures): longer than what the failures before had. It doubles, too."""

RETRY_AFTER_S_MAX: Final = 120
"""The longest `Retry-After` of a full queue: by then much may have changed."""

LOAD_REPORT_AGE_S_MAX: Final = 0.25
"""The age of the measurements in `endpoint-load-metrics`: balancers ask with each request, and thousands of
models take a while."""

LOAD_RATE_S_MIN: Final = 1.0
"""The time over which `endpoint-load-metrics` counts requests a second, at least."""

PRIORITY_LEVELS_MAX: Final = 1024
"""`dynamic_batching.priority_levels`: each level is a separate queue that is looked at when a batch is formed."""

CLASSES_MAX: Final = 1_048_576
"""Classes of all rows of an output together: each is a separate object."""

CLASSIFICATION_ELEMENTS_MAX: Final = 1_000_000
"""Elements of one row that classification sorts, as Triton 2.73."""

TENSOR_DIMS_MAX: Final = 32
"""Dimensions of a tensor: what every supported numpy can hold."""

BYTES_ELEMENTS_MAX: Final = 1_048_576
"""Elements of a BYTES tensor in a request. Each is a separate object: this many take some tens of milliseconds to free, in
which nothing else can run, and many times their bytes in memory."""

SEQUENCES_LIVE_MAX: Final = 65_536
"""Live sequences of one model version, in slots and waiting for one: far above what instances can serve, and a few hundred bytes
each besides their state. A START beyond it is refused."""

SEQUENCE_REQUESTS_WAITING_MAX: Final = 65_536
"""Requests of one model version that wait, in slots and in the backlog, because another of their sequence runs or there is no
slot: what clients may send ahead. Further ones are refused."""

SEQUENCES_LOST_REMEMBERED_MAX: Final = 4096
"""Ids of sequences that were lost with their instance, kept so that their next request is told so and not that it lacks START."""

HAVE_SERVED_REMEMBERED_MAX: Final = 4096
"""Versions that were served, kept by name so that a request for one that was removed is told so."""

SEQUENCES_STOP_RESERVE_S: Final = 2
"""At shutdown a server waits for live sequences to end; this much of its exit time-out is left to answer and to unload."""

ANSWERS_STOP_S: Final = 5
"""At the end of the exit time-out every request that is still open is refused. So long at most these answers have to
leave before its connections are cut: it takes milliseconds, but for clients that do not read, and machines that do much else."""

SEQUENCE_ID_CHARACTERS_MAX: Final = 128
"""A sequence id that is a string, as Triton."""

CONFIG_PROBLEMS_MAX: Final = 100
"""Syntax problems reported for one configuration; more would only repeat the first ones."""

CONTROL_PARSING_THREADS_MAX: Final = 2
"""Threads that read configurations at the same time: they compute in Python, so more of them are no faster and only keep the
server's loop from the interpreter."""

CONTROL_SCANNING_THREADS_MAX: Final = 8
"""Threads that look at the files of models at the same time. They mostly wait for the file system; when the file system hangs,
this many models can hang before the others are no longer looked at."""

FINGERPRINT_DIGEST_BYTES_MAX: Final = 16 * MIB
"""Files of a model up to this size are compared by content, so that a `touch` reloads nothing; larger ones by size, time and
inode, because reading them at each look would cost more than a needless reload."""

MODEL_FILES_MAX: Final = 100_000
"""Files and folders in one model directory: a second of looking. Stops a wrong path (a home) from being walked for ever."""

MODEL_FOLDER_LINKS_MAX: Final = 1_000
"""Links to folders that are followed in one model directory: a packed Python environment has some tens."""

MODEL_DEPTH_MAX: Final = 64
"""Folders in each other in one model directory: a packed Python environment has less than twenty."""

MODEL_TEXT_BYTES_MAX: Final = 64 * MIB
"""A label file: a million labels of 64 bytes."""

MODEL_DATA_BYTES_MAX: Final = 2048 * MIB
"""A file of warm-up data or of an initial state: a tensor as large as a request may bring."""

WATCHED_FOLDERS_MAX: Final = 8_192
"""Folders of the repositories whose changes the system tells: as many as it grants a user by default. Changes in further ones
are found by the next look."""

QUICK_BATCHES_MAX: Final = 16
"""Batches of a quick model that an instance is given at a time. Handing over costs about as much as a tiny request; a sixteenth
of that is little enough."""

QUICK_BATCHES_NS_MAX: Final = 500_000
"""In how long they should be over: several times what handing over costs, in a worker process too, and a delay of the first
answers that clients hardly notice. A model whose batches take longer is slow, and not executed on the loop."""

LOOP_EXECUTION_INPUT_BYTES_MAX: Final = 64 * KIB
"""Batches with larger inputs go to the instance's thread: the same bound as for what the loop itself copies to a worker."""

HAND_OVER_NS_MIN: Final = 100_000
"""Executions that take longer than handing over to a thread and back are left to the thread when others come meanwhile. It takes
this long on a quick machine that is otherwise idle."""

HAND_OVER_NS_MAX: Final = 300_000
"""More than this is not believed: in a busy process the thread also waits for the interpreter."""

HAND_OVERS_MEASURED: Final = 16
"""The mean of this many says how long it takes here and now: longer on a slow machine, and where the interpreter is busy."""

HAND_OVER_KEPT: Final = 16_384
"""Executions on the loop after which it is measured anew, where they take longer than HAND_OVER_NS_MIN."""

LOOP_EXECUTION_PAUSE: Final = 256
"""Batches that are left to the thread when executions on the loop were late, before some are tried there again: a few in a
hundred. Where the interpreter is busy, more would take seconds."""

LOOP_EXECUTION_STREAK_MIN: Final = 16
"""Executions that must have been quick before one is on the loop."""

LOOP_EXECUTION_STREAK_MAX: Final = 65_536
"""The same after executions that held the loop up, each of which makes it eight times as many."""

QUICK_SHARE_NS_MIN: Final = 250_000
"""An instance of a quick model gets at least as many of the waiting batches as take so long, even if its share of them is less:
some times what waking a worker costs. With less, two instances are woken again and again for one or two requests each."""

OVERLAP_REQUESTS_MIN: Final = 8
"""Requests in a batch from which on it is looked for whether half as many would let server and instance work at the same time.
With fewer there is little to gain."""

OVERLAP_CONVOYS_MIN: Final = 4
"""Times in a row that the server must have seen that it would."""

OVERLAP_BATCHES_MAX: Final = 500
"""Batches after which it looks again. What it sees meanwhile is four rounds of whole batches at most, one in a hundred."""

OVERLAP_TRIAL_BATCHES: Final = 8
"""Halved batches of which the quickest says what half costs. Few, as a model that takes as long for half as for all pays for
them, and enough for one that nothing disturbed."""

WORKER_CHECK_S: Final = 1.0
"""Seconds between two checks that an instance in a separate process is alive while it executes. Its end is seen at once, but not
where another process holds its connection open."""

LONG_EXECUTION_S: Final = 10.0
"""Seconds without the end of any batch after which an instance that has one is told in the log, with the stack of its model; then
after twice as long, and so on, so that the lines about a model that hangs stay few."""

FAILURE_REPORTS_MAX: Final = 10
"""Exceptions of one instance's `execute` that are logged in FAILURE_REPORTS_S. Each has a traceback, and a model that fails
every request must not fill the disk; the rest is counted."""

FAILURE_REPORTS_S: Final = 10.0

FAILURE_REPORTS_INSTANCES_MAX: Final = 4096
"""Instances whose failures are counted at a time: names of models come and go."""

ARCHIVE_RATIO_MAX: Final = 50
"""Unpacked bytes per byte of an archive: execution environments have 2 to 5, models less, a bomb has a thousand."""

ARCHIVE_BYTES_FREE: Final = GIB
"""Accepted whatever the archive's size."""

ENVIRONMENT_ENTRIES_MAX: Final = 1_000_000
"""Files, folders and links of an execution environment: large ones have 200,000."""

MODEL_ARCHIVE_ENTRIES_MAX: Final = 10_000
"""Files and folders of a model that `tpy import` reads: one with more is something else than a model."""

WORKER_SEEN_END_S: Final = 0.02
"""Seconds that the end of a worker process may come after the end of its connection, for the error of its requests to say how it
ended. The loop waits for it: memory of a process is freed before its connection is closed, there is little left to wait for."""

WORKER_MESSAGES_AT_ONCE_MAX: Final = 64
"""Messages of one worker that the Trio thread handles in one go: some milliseconds, then it is the turn of others."""

WORKER_MESSAGES_UNREAD_MAX: Final = 65_536
"""Messages that wait for a worker to read them; a worker with this many that goes on sending is ended. All calls that a model may
make at once, with all responses that may wait, stay below."""

UNREPORTED_NS_MAX: Final = 2_000_000
"""Delay of the answers before a batch of a quick model that takes long. Looking sooner costs
more."""

PREFETCHED_BATCHES_MAX: Final = 4
"""Batches that the only instance of a slow model may hold: the one that it executes, and enough that it never waits for the
server."""

EXACT_DEADLINE_NS_MAX: Final = 10_000_000
"""A scheduler whose deadlines are nearer than this gets a kernel timer, which is one descriptor. Farther ones are kept by epoll's
time-out: whole milliseconds, rounded up, which is a tenth of this at most."""

INSTANCES_OF_GROUP_MAX: Final = 4096
"""`count` of an instance group: beyond any machine, stops a typo from starting threads until memory ends."""

INSTANCES_OF_MODEL_MAX: Final = INSTANCES_OF_GROUP_MAX
"""The same for all groups of a model: a short text can list many groups."""

INSTANCE_CLOSE_S_MAX: Final = 1
"""Time that a server whose exit time-out is over still waits for one instance to close before it leaves it behind: enough for
what closes at all, and the process ends soon after the time it was given."""

LOAD_SLOW_S: Final = 60
"""A load that takes longer is reported, and again whenever it has taken twice as long: it may hang."""

LOOP_TURN_NS_MAX: Final = 5 * NS_PER_MS
"""A turn of the loop that has taken longer is long: who has more to do with what clients have sent waits in line. Enough for
some tens of requests, and what health checks and others wait for at most, but for LOOP_TURN_TASKS_MAX steps."""

LOOP_TURN_TASKS_MAX: Final = 8
"""Tasks in that line that go on in each turn, with a step each (three milliseconds at most)."""

POLLED_DESCRIPTORS_MAX: Final = 128
"""Connections of clients and workers that are read in one turn of the loop; the kernel takes turns among ready ones."""

DECOUPLED_RESPONSES_WAITING_MAX: Final = 64
"""Responses of one decoupled request that were sent and not taken; with as many its model waits. Enough that a fast model and
the loop seldom wait for each other, and the memory that a slow client costs."""

DECOUPLED_RESPONSE_BYTES_WAITING_MAX: Final = 16 * MIB
"""The same in bytes of their tensors. One response may always be sent, whatever its size."""

ENSEMBLE_FRAMES_MAX: Final = 64
"""Responses of one decoupled step, in one request to an ensemble, that the steps after it are not done with; with as many the
step's model waits. As many as a model may have sent ahead of a caller."""

ENSEMBLE_STEP_WAIT_NS_MAX: Final = 300 * NS_PER_S
"""Time that a step waits for its place under max_inflight_requests before it begins all the same. Triton's number."""

ENSEMBLE_PLANS_MAX: Final = 64
"""Sets of requested outputs that an ensemble remembers what to run for; others are worked out anew each time (microseconds)."""

ENSEMBLE_NESTING_MAX: Final = 16
"""Ensembles within ensembles: each level answers on the stack of the one inside it."""

RESPONSE_STATISTICS_MAX: Final = 1024
"""Rows of `response_stats` of one model version; responses with a higher index count in the last one."""

ACCESS_FILE_BYTES_MAX: Final = 4 * MIB
"""The file of --auth-config: ten thousand keys."""

ACCESS_TOKEN_CHARACTERS_MAX: Final = 16 * KIB
"""A credential: tokens with many claims have a few kilobytes. A longer one is not hashed."""

ACCESS_TOKENS_REMEMBERED_MAX: Final = 4096
"""Tokens of which it is remembered that they are good: 2 MB. The oldest goes when another comes."""

ACCESS_SUBJECTS_MAX: Final = 16_384
"""Subjects of tokens whose rates are counted: 10 MB. Beyond it, subjects with nothing running begin anew."""

ACCESS_MODELS_REMEMBERED_MAX: Final = 1024
"""Names of models of which it is remembered whether a pattern matches them."""

TLS_FILES_LOOK_S: Final = 10.0
"""Between two looks at the files of certificates: who renews one days before it expires does not mind, and a look is three
stats."""

TLS_HANDSHAKE_S_MAX: Final = 20
"""Seconds that a client may take for its TLS handshake, on every port."""

PROXY_HEADER_BYTES_MAX: Final = 4096
"""Bytes of a header of the PROXY protocol behind its first 16: addresses, and what a balancer adds of TLS and of itself."""

TLS_HANDSHAKE_STOP_S_MAX: Final = 1
"""The same from the moment on at which the server stops: enough for some round trips over a slow line."""

TLS_CLOSE_S_MAX: Final = 1
"""Seconds for telling a client that its connection closes (close_notify): one that reads nothing is closed without."""

CACHE_INLINE_BYTES_MAX: Final = 256 * KIB
"""Request or answer data up to this size is hashed or copied on the loop (0.3 ms); more goes to a thread."""

CACHE_HASH_THREADS_MAX: Final = 2
"""Threads that make keys of large requests; each does about 1 GB/s."""

CACHE_JOBS_MAX: Final = 1024
"""Hashes, copies, lookups and insertions that wait for the cache's threads; beyond it requests run as if there were no cache."""

CACHE_WAITING_MAX: Final = 65_536
"""Requests of one model version that wait for an equal one's answer; beyond it they are queued as without a cache."""

READINESS_CHECK_S_MAX: Final = 5
"""Time that a model's is_ready may take: Triton's number. A model that takes longer is not ready."""

READINESS_CHECK_GRACE_S: Final = 1
"""Longer than that nobody waits for the thread that asks, which knows the time itself unless model code hangs in it."""

CACHE_INSERTION_BYTES_WAITING_MAX: Final = 256 * MIB
"""Answers that wait to be written to Redis or a compiled cache; beyond it they are not kept."""

CACHE_ENTRY_BYTES_MAX: Final = 64 * MIB
"""One answer in Redis or a compiled cache, written or read: it is held in memory twice on either side, and Redis answers nobody
else meanwhile."""

NATIVE_CACHE_CALL_S_MAX: Final = 1.0
"""A lookup or insertion of a compiled cache: as Redis' default. A process that takes longer is ended and started again."""

NATIVE_STRATEGY_CALL_S_MAX: Final = 0.1
"""One answer of a batching strategy in its process, which takes some 20 us: the loop waits for it. A process that takes longer is
ended and started again."""

NATIVE_STRATEGY_PAUSE_S_MIN: Final = 1.0
"""Pause after a batching strategy's process could not be started again; it doubles with each failure in a row."""

NATIVE_STRATEGY_PAUSE_S_MAX: Final = 60.0
"""As long at most."""

NATIVE_STRATEGY_WAIT_S_MAX: Final = 0.1
"""The loop waits so long in a row for slow answers of a strategy in its process; then batches are formed without it for
as long as NATIVE_STRATEGY_WAIT_PART says. Twice that, with the last answer, is what others wait."""

NATIVE_STRATEGY_WAIT_PART: Final = 0.1
"""Part of all time that the loop may wait for one strategy's slow answers."""

NATIVE_STRATEGY_COUNTED_S: Final = 0.002
"""Quicker answers do not count: a strategy that is as it should be takes a hundredth."""

NATIVE_STRATEGY_SLOW_S: Final = 0.02
"""An answer of a batching strategy that takes so long is an error in the log: no request of any model goes on meanwhile."""

NATIVE_PLUGIN_START_S_MAX: Final = 300.0
"""Starting the process of a compiled cache or batching strategy, and opening it, which takes a part of a second: with half a core
beside other loads it took more than 60."""

NATIVE_PLUGIN_SLOW_S: Final = 10.0
"""A start that takes longer is reported, again and again."""

CACHE_PAUSE_NS_MIN: Final = 1_000_000_000
"""Pause after a Redis or a compiled cache did not answer; it doubles with each failure in a row."""

CACHE_PAUSE_NS_MAX: Final = 30_000_000_000
"""As long at most: so long it may take until one that is back is noticed."""

MODEL_CALLS_OUTSTANDING_MAX: Final = 1024
"""Calls to other models that one instance has made and that have not ended; beyond it they are refused. A model that makes one
per row of a batch stays below; one that calls without ever waiting for answers does not."""

MODEL_CALL_BYTES_OUTSTANDING_MAX: Final = 4096 * MIB
"""The same in bytes of their inputs. One call may always be made, whatever its size."""

CALL_CIRCLE_CHECK_S: Final = 1
"""Between two checks of calls that take long for waiting in a circle; most circles are seen when the call that closes them is
made."""

REPOSITORY_CALLS_WAITING_MAX: Final = 256
"""Calls of models to load or unload models that wait for the loop to turn to them."""

FRONTEND_PROCESSES_MAX: Final = 64
"""More frontends than cores is never useful, and the engine's loop is full long before."""

PAGE_MODELS_MAX: Final = 500
"""Models that the page for browsers shows; /v2/models has all. Each is a line of HTML that is made on the loop."""

PAGE_REASON_CHARACTERS_MAX: Final = 2_000
"""Of the reason why a model is not there, on that page."""

EMBEDDED_RESPONSES_MAX: Final = 64
"""Responses of one request that wait for a program that has the server in it, before the model that sends them waits."""

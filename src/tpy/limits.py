"""Every bound of the server, with why it has its value. A bound that is not here does not exist."""

from __future__ import annotations

from typing import Final

from tpy.units import KIB, MIB, NS_PER_MS, NS_PER_S

HTTP_INPUT_BYTES_MAX_DEFAULT: Final = 64 * MIB
"""--http-max-input-size: Triton's default. Bounds the request body, before and after decompression."""

REQUEST_BODIES_BYTES_MAX: Final = 2048 * MIB
"""Request bodies that are being received or decoded, of all HTTP connections of a process together; what goes beyond it is
refused (503), as waiting for others to end would be waiting for those who never end. Each counts with what has arrived, from 64
KiB on: 170 images of 12 MB at the same moment, or 32 bodies of the largest default size. Not less than one body may have."""

HTTP_RECEIVE_BYTES_MAX: Final = 256 * KIB
"""Of a large body, what one connection takes from its socket in one turn of the loop: a tenth of a millisecond. A sender that is
as fast as the loop would otherwise keep it in one call for as long as its body lasts."""

ECHO_CHARACTERS_MAX: Final = 1024
"""Characters of one name, id or value that an error text or a log line repeats: far above real ones, far below a request."""

ECHO_LIST_CHARACTERS_MAX: Final = 4096
"""The same for a list of them."""

ERROR_CHARACTERS_MAX: Final = 64 * KIB
"""A whole error text, whoever made it: room for a long traceback of a model."""

MODEL_NAME_BYTES_MAX: Final = 255
"""The name of a model to load: it is the name of a folder, which file systems bound so."""

HTTP_HEADER_BYTES_MAX: Final = 64 * KIB
"""Request line plus headers. Generous for auth tokens, far below what hurts."""

HEADER_NAMES_REMEMBERED_MAX: Final = 256
"""Names of headers of which it is remembered whether the forward pattern matches them: those of real clients are a few dozen."""

HEADER_NAME_REMEMBERED_CHARACTERS_MAX: Final = 128
"""Longer names are matched anew each time, so that what is remembered stays below 100 KB."""

HTTP_PIPELINED_REQUESTS_MAX: Final = 16
"""Requests of one connection that may wait for their turn; the reader stops reading beyond it."""

ACCEPT_PAUSE_S: Final = 0.1
"""How long a port that cannot accept connections, for want of file descriptors or memory, waits before it tries again."""

ACCEPT_WARNING_PAUSE_S: Final = 60.0
"""How often such a port says so in the log."""

OPEN_FILES_WANTED: Final = 65_536
"""Open files that `tpy serve` asks the system for, as far as its hard limit goes: each connection is one, and the usual soft
limit of 1,024 is for programs that use select(2)."""

DOCTOR_OPEN_FILES_MIN: Final = 4096
DOCTOR_MEMORY_BYTES_MIN: Final = 512 * MIB
DOCTOR_SHARED_MEMORY_BYTES_MIN: Final = 128 * MIB
"""Below these `tpy doctor` warns: some thousand connections, a server with small models, and some batches of images for workers;
what containers are given by default in /dev/shm is 64 MiB."""

HTTP_CHUNKS_MAX: Final = 65_536
"""Chunks in one chunked request body, as Triton 2.73."""

JSON_DEPTH_MAX: Final = 100
"""Nesting of `data` in a JSON request, as Triton 2.73."""

LOAD_OVERRIDE_BYTES_MAX: Final = 2048 * MIB
"""Sum of the `file:` overrides in one load call."""

LOAD_OVERRIDE_FILES_MAX: Final = 4096
"""Files in one load call: models have tens. Each is written, and looked at again."""

CONFIG_BYTES_MAX: Final = MIB
"""Size of a config.pbtxt or of a `config` override: room for ensembles of thousands of steps. The worst text of this size takes
seconds to read (in a thread), and one of 16 MiB would take minutes."""

WORKER_RESTART_BACKOFF_S_MIN: Final = 1
"""Between the start of an instance and its restart at the earliest, when it failed once. One that has lived longer is started
again at once: whoever makes it fail with requests costs the host one start a second at most."""

WORKER_RESTART_BACKOFF_S_MAX: Final = 60
"""The pause doubles with each failure in a row up to this."""

PRIORITY_LEVELS_MAX: Final = 1024
"""`dynamic_batching.priority_levels`: each level is a queue of its own that is looked at when a batch is formed."""

CLASSES_MAX: Final = 1_048_576
"""Classes of all rows of an output together: each is an object of its own."""

CLASSIFICATION_ELEMENTS_MAX: Final = 1_000_000
"""Elements of one row that classification sorts, as Triton 2.73."""

TENSOR_DIMS_MAX: Final = 32
"""Dimensions of a tensor: what every supported numpy can hold."""

BYTES_ELEMENTS_MAX: Final = 1_048_576
"""Elements of a BYTES tensor in a request. Each is an object of its own: as many take some tens of milliseconds to let go of, in
which nothing else can run, and many times their bytes in memory."""

JSON_EXPLAIN_BYTES_MAX: Final = 64 * KIB
"""Broken JSON up to this size is scanned again for Triton's exact text and offset; that scan is slow, so longer documents get
the parser's own words."""

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
"""When a server stops it waits for live sequences to end; this much of its exit time-out is left to answer and to unload."""

ANSWERS_STOP_S: Final = 5
"""When the exit time-out of a server is over, every request that is still open is refused. So long at most these answers have to
leave before its connections are cut: it takes milliseconds, but for clients that do not read, and machines that do much else."""

HTTP_STOP_IDLE_S: Final = 0.5
"""When a server stops, requests on open HTTP connections are still answered, each as its connection's last. A connection whose
client sends nothing for so long is closed, so that idle ones do not hold the exit: enough for the next request of a client at
work."""

SEQUENCE_ID_CHARACTERS_MAX: Final = 128
"""A sequence id that is a string, as Triton."""

CONFIG_PROBLEMS_MAX: Final = 100
"""Syntax problems reported for one configuration; more would only repeat the first ones."""

HTTP_CODEC_THREADS_MAX: Final = 4
"""Threads that parse, encode, compress and decompress large HTTP bodies at the same time."""

HTTP_INLINE_JSON_BYTES_MAX: Final = 256 * KIB
"""JSON up to this size is parsed on the loop (a few milliseconds), if it has few values; other goes to a thread."""

HTTP_INLINE_JSON_VALUES_MAX: Final = 8192
"""Values in it: as many take some milliseconds also where each is looked at, because one of them is wrong."""

HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX: Final = 16 * KIB
"""JSON up to this size cannot have more, and is not counted through."""

JSON_WHOLE_BYTES_MAX: Final = 256 * KIB
"""JSON up to this size is parsed as a whole, in a millisecond; of larger documents the arrays and strings are, in pieces."""

JSON_OUTLINE_BYTES_MAX: Final = 512 * KIB
"""What a large JSON document may have besides arrays of numbers or strings and long strings, in bytes. Parsed as a whole, in some
milliseconds at worst, and up to sixty times as large as Python's objects: room for thousands of tensors and parameters."""

HTTP_INLINE_JSON_ELEMENTS_MAX: Final = 32_768
"""Output elements up to this number are written as JSON on the loop; more go to a thread."""

HTTP_INLINE_BYTES_MAX: Final = 128 * KIB
"""Binary bodies up to this size are split into the elements of BYTES tensors on the loop (some milliseconds at worst)."""

HTTP_INLINE_COMPRESS_BYTES_MAX: Final = 32 * KIB
"""Response bodies up to this size are compressed on the loop."""

HTTP_STREAM_RESPONSES_MAX: Final = 64
"""Responses of one generate_stream that wait to be written; with as many the request is paused."""

HTTP_READER_BYTES_PER_S_MIN: Final = 4 * KIB
"""How fast an answer must be taken on the whole, after the write time-out: slower readers hold answers, and the stop."""

HTTP_STREAM_BYTES_MAX: Final = 1 * MIB
"""The same in bytes of their tensors."""

HTTP_DISCARDED_BODY_BYTES_MAX: Final = 1024 * MIB
"""An oversized body is read and thrown away up to this size, so that its sender reads the refusal and the connection lives."""

HTTP_CHUNK_OVERHEAD_BYTES_MAX: Final = 32
"""Bytes of framing per chunk of a chunked body; more (long chunk extensions) is abuse."""

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
"""In how long they should be over: several times what handing over costs, also where each request goes through a worker process,
and a delay of the first answers that clients hardly notice. A model whose batch takes longer is slow."""

OVERLAP_REQUESTS_MIN: Final = 8
"""Requests in a batch from which on it is looked for whether half as many would let server and instance work at the same time.
With fewer there is little to gain."""

OVERLAP_STEPS_MIN: Final = 4
"""How often in a row the server must have seen that it would."""

OVERLAP_BATCHES_MAX: Final = 500
"""Batches after which it looks again. What it sees meanwhile is four rounds of whole batches at most, one in a hundred."""

OVERLAP_TRIAL_BATCHES: Final = 8
"""Halved batches of which the quickest says what half costs. Few, as a model that takes as long for half as for all pays for
them, and enough for one that nothing disturbed."""

PROMPT_SILENCE_S_MAX: Final = 1.0
"""How long the Trio thread waits for an instance that has a process of its own, before a thread does, which also looks whether
that process still lives."""

UNREPORTED_NS_MAX: Final = 2_000_000
"""When one batch of a quick model takes long, how late the answers of those before it may be for that. Looking sooner costs
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
"""How long a server whose exit time-out is over still waits for one instance to close before it leaves it behind: enough for what
closes at all, and the process ends soon after the time it was given."""

LOAD_SLOW_S: Final = 60
"""A load that takes longer is reported, and again whenever it has taken twice as long: it may hang."""

GRPC_MESSAGE_BYTES_MAX: Final = 2_147_483_647
"""One gRPC message either way: Triton's limit, and protobuf's."""

GRPC_HEADER_BYTES_MAX: Final = 16 * KIB
"""Headers of one call, counted as HTTP/2 does. gRPC's own hard limit."""

GRPC_STREAMS_PER_CONNECTION_MAX: Final = 1024
"""Calls of one connection at the same time. Clients hold back what is beyond; far above what a load generator uses."""

GRPC_STREAM_SEND_BYTES_MAX: Final = 1 * MIB
"""Response messages queued on one stream before its sender waits: keeps a fast reader busy, and bounds what a slow one costs."""

LOOP_TURN_NS_MAX: Final = 5 * NS_PER_MS
"""A turn of the loop that has taken longer is long: who has more to do with what clients have sent waits in line. Enough for
some tens of requests, and what health checks and others wait for at most, but for LOOP_TURN_TASKS_MAX steps."""

LOOP_TURN_TASKS_MAX: Final = 8
"""Tasks in that line that go on in each turn, with a step each (three milliseconds at most)."""

POLLED_CONNECTIONS_MAX: Final = 128
"""Connections of a port that are read in one turn of the loop; the kernel goes round those that are ready."""

GRPC_CONNECTION_SLICE_NS_MAX: Final = 500_000
"""How long a connection goes on with what has arrived, however long the turn: what is sent by clients that wait for answers."""

GRPC_TASKS_PER_TURN_MAX: Final = 4
"""Control calls and streams that a connection begins in one turn of the loop: each has a task, which works in the next one (a
millisecond); and calls that are cancelled in one when it ends."""

GRPC_FRAMES_PER_STEP_MAX: Final = 64
"""HTTP/2 frames that are read in one step (0.2 ms). Large header blocks and SETTINGS count as several."""

GRPC_MANY_STREAMS: Final = 16
"""With more streaming calls than that on a connection, each waits in line for its first message of a long turn, too."""

GRPC_STREAM_MESSAGES_PER_TURN_MAX: Final = 16
"""Messages of one stream that its handler takes before others have their turn: a millisecond of small requests."""

GRPC_CONNECTION_MESSAGES_PER_TURN_MAX: Final = 64
"""The same for all streams of a connection together, but at least one each."""

GRPC_STATUS_MESSAGE_BYTES_MAX: Final = 6 * KIB
"""The encoded text of a status: with the other trailers below the 8 KiB from which gRPC's clients begin to refuse them."""

GRPC_WHOLE_PARSE_BYTES_MAX: Final = 16 * KIB
"""Inference requests up to this size are given to protobuf whole (two milliseconds at most, whatever they are); in larger ones
the tensors are found first, uncopied, and the fields counted."""

GRPC_WHOLE_CONTENTS_BYTES_MAX: Final = KIB
"""Typed contents of an input up to this size are given to protobuf with the rest; larger ones are read as arrays."""

GRPC_REQUEST_FIELDS_MAX: Final = 8_192
"""Inputs, outputs, parameters and raw tensors of one inference request: several times the inputs of any real model. Each costs
protobuf up to 0.3 us and 250 bytes, and the server a few microseconds."""

GRPC_SHAPE_BYTES_MAX: Final = KIB
"""The shape of an input as it is on the wire: TENSOR_DIMS_MAX dimensions take ten bytes each at most."""

GRPC_NESTED_FIELDS_MAX: Final = 32_768
"""The fields in all of them: names, shapes, parameters of inputs. Protobuf takes half a microsecond for one at the most, during
which nothing else runs."""

GRPC_HEAD_BYTES_MAX: Final = MIB
"""All that is not tensor data in one inference request: parameters may be long texts. Protobuf takes milliseconds for it."""

GRPC_INLINE_FIELDS_MAX: Final = 1_024
"""Fields of an inference request that are counted on the loop (half a millisecond); with more it goes to a thread."""

GRPC_INLINE_INPUTS_MAX: Final = 256
"""Inputs that are decoded on the loop (a millisecond); more go to a thread."""

GRPC_INLINE_STRINGS_MAX: Final = 8_192
"""BYTES elements of a request that are read on the loop (a millisecond); more go to a thread."""

GRPC_CONTENTS_FIELDS_MAX: Final = 1_048_576
"""Strings of one input in bytes_contents, beyond GRPC_CONTENTS_PARSE_BYTES_MAX: each is a field that is looked at alone, half a
second for so many (in a thread). As raw tensors they cost less."""

GRPC_CONTENTS_PARSE_BYTES_MAX: Final = 2 * MIB
"""Typed contents that are no packed numbers are given to protobuf up to this size: 8 ms at most, while nothing else runs."""

GRPC_INLINE_BYTES_MAX: Final = 64 * KIB
"""An inference request without its tensors, and typed contents, are parsed on the loop up to this size (three milliseconds at
most), else in a thread."""

GRPC_INLINE_STRING_BYTES_MAX: Final = 256 * KIB
"""BYTES elements up to this size together are copied on the loop, else in a thread."""

GRPC_CONTROL_BYTES_MAX: Final = 64 * KIB
"""One request of a method other than inference and load: names and settings."""

GRPC_CONTROL_FIELDS_MAX: Final = 256
"""Fields in it, and in the messages within it: ten times what is needed. Each costs ten microseconds."""

GRPC_INLINE_CONTROL_BYTES_MAX: Final = 4 * KIB
"""Such requests are read on the loop up to this size, else in a thread."""

GRPC_LOAD_FIELDS_MAX: Final = 16_384
"""Fields of a load call, where each file that it brings is four."""

GRPC_INLINE_ELEMENTS_MAX: Final = 32_768
"""BYTES elements, and elements to classify, that are written into a response on the loop; more go to a thread."""

GRPC_INLINE_ENTRIES_MAX: Final = 100
"""Models that a statistics or index response may list and still be made on the loop (a tenth of a millisecond each)."""

GRPC_JOINED_BYTES_MAX: Final = 16 * KIB
"""A response up to this size is joined into one piece: copying it costs less than sending its parts."""

GRPC_INLINE_UNPACKED_BYTES_MAX: Final = 64 * KIB
"""What is made of a small compressed message on the loop (0.2 ms); one that becomes more is decompressed in a thread."""

GRPC_UNPACKED_BYTES_FREE: Final = HTTP_INPUT_BYTES_MAX_DEFAULT
"""A compressed message may become as large as this whatever its own size: images that are all zeros shrink to a thousandth."""

GRPC_UNPACKED_RATIO_MAX: Final = 100
"""What is larger may be so many times as large as what arrived: far beyond what compression makes of data that is not constant,
while a few megabytes cannot become the two gigabytes that a message may have."""

GRPC_CODEC_THREADS_MAX: Final = 4
"""Threads that parse, encode and compress large gRPC messages at the same time."""

GRPC_STREAM_REQUESTS_MAX: Final = 256
"""Requests of one ModelStreamInfer that are not answered yet; beyond it the stream is not read on."""

GRPC_STREAM_SEQUENCE_REQUESTS_MAX: Final = SEQUENCE_REQUESTS_WAITING_MAX
"""The same while one of them is of a sequence: it may wait for the END of another sequence, which is further on in the stream."""

GRPC_STREAM_SEQUENCE_BYTES_MAX: Final = 64 * MIB
"""Bytes of those requests, and of their answers that others hold up; beyond it GRPC_STREAM_REQUESTS_MAX holds again."""

GRPC_STREAM_WAITING_BYTES_MAX: Final = 16 * MIB
"""Responses of one ModelStreamInfer that wait for a slow reader; beyond it the stream is not read on."""

DECOUPLED_RESPONSES_WAITING_MAX: Final = 64
"""Responses of one decoupled request that were sent and not taken; with as many its model waits. Enough that a fast model and
the loop seldom wait for each other, and the memory that a slow client costs."""

DECOUPLED_RESPONSE_BYTES_WAITING_MAX: Final = 16 * MIB
"""The same in bytes of their tensors. One response may always be sent, whatever its size."""

ENSEMBLE_FRAMES_MAX: Final = 64
"""Responses of one decoupled step, in one request to an ensemble, that the steps after it are not done with; with as many the
step's model waits. As many as a model may have sent ahead of a caller."""

ENSEMBLE_STEP_WAIT_NS_MAX: Final = 300 * NS_PER_S
"""How long a step waits for its place under max_inflight_requests before it begins all the same. Triton's number."""

ENSEMBLE_PLANS_MAX: Final = 64
"""Sets of requested outputs that an ensemble remembers what to run for; others are worked out anew each time (microseconds)."""

ENSEMBLE_NESTING_MAX: Final = 16
"""Ensembles within ensembles: each level answers on the stack of the one inside it."""

RESPONSE_STATISTICS_MAX: Final = 1024
"""Rows of `response_stats` of one model version; responses with a higher index count in the last one."""

GRPC_HEALTH_POLL_S: Final = 1
"""How often Watch looks at the readiness when nobody tells it of changes."""

TLS_HANDSHAKE_S_MAX: Final = 20
"""Seconds that a client may take for its TLS handshake, on every port."""

GRPC_SETUP_S_MAX: Final = 20
"""How long a client may take for its HTTP/2 preface and the acknowledgement of our settings."""

GRPC_GOAWAY_ANSWER_S_MAX: Final = 1
"""How long a connection that drains waits for the client to say that it knows; calls that it begins later are refused."""

GRPC_LINGER_S_MAX: Final = 1
"""How long a connection that is ended waits for the client to close, so that the last bytes reach it."""

GRPC_STREAM_WINDOW_BYTES: Final = 4 * MIB
"""What a client may send on one call ahead of its handler; a larger message still arrives, credited as it comes."""

GRPC_CONNECTION_WINDOW_BYTES: Final = 64 * MIB
"""The same for all calls of a connection together: many slow stream handlers cannot hold more."""

GRPC_OUTPUT_BYTES_MAX: Final = 1 * MIB
"""Response data of a connection that is ready to be written: keeps a fast socket busy. The rest waits in its stream's queue."""

GRPC_OVERDUE_BYTES_MAX: Final = 4 * MIB
"""The same with headers and control frames, which do not wait: a client that makes us answer and never reads has gone too far."""

GRPC_IDLE_FRAMES_BURST_MAX: Final = 1000
"""HTTP/2 frames that carry nothing (pings, settings, priorities, empty data, window updates, unknown ones). Real clients send
some because of what they receive, so headers and data that we send earn GRPC_IDLE_FRAMES_PER_ANSWER_FRAME back; and some with
each call, so calls that they cancel do too, which are counted on their own."""

GRPC_IDLE_FRAMES_PER_S_MAX: Final = 10
"""Those that may come without any answers of ours, in the long run."""

GRPC_IDLE_FRAMES_PER_ANSWER_FRAME: Final = 4
"""A client answers a frame of data with at most two window updates and a ping."""

GRPC_RESETS_BURST_MAX: Final = 1000
"""Calls reset before their answer, by the client or because it broke a rule: opened and dropped faster than calls are answered,
they would evade the bound on streams. Every answered call earns one back."""

GRPC_RESETS_PER_S_MAX: Final = 200
"""Those that may come without any answers of ours, in the long run."""

GRPC_HEADER_FRAMES_MAX: Final = 16
"""HTTP/2 frames in one header block; more than any client needs for as many bytes as we take."""

GRPC_HEADER_FIELDS_MAX: Final = 256
"""Fields of one header block: up to ten microseconds each, and more than any call has."""

GRPC_HEADER_VALUES_MAX: Final = 64
"""Values with commas between them in one header field."""

GRPC_SETTINGS_MAX: Final = 64
"""Pairs in one SETTINGS frame; there are about ten settings."""

GRPC_HEADER_BLOCKS_REMEMBERED_MAX: Final = 64
"""Decoded and encoded header blocks remembered for a connection, each way; a client has a handful."""

CACHE_INLINE_BYTES_MAX: Final = 256 * KIB
"""Request or answer data up to this size is hashed or copied on the loop (0.3 ms); more goes to a thread."""

CACHE_INLINE_ELEMENTS_MAX: Final = 4096
"""The same for BYTES tensors, whose elements are looked at one by one."""

CACHE_HASH_THREADS_MAX: Final = 2
"""Threads that make keys of large requests; each does about 1 GB/s."""

CACHE_JOBS_MAX: Final = 1024
"""Hashes, copies, lookups and insertions that wait for the cache's threads; beyond it requests run as if there were no cache."""

CACHE_WAITING_MAX: Final = 65_536
"""Requests of one model version that wait for an equal one's answer; beyond it they are queued as without a cache."""

READINESS_CHECK_S_MAX: Final = 5
"""How long a model's is_ready may take: Triton's number. A model that takes longer is not ready."""

READINESS_CHECK_GRACE_S: Final = 1
"""Longer than that nobody waits for the thread that asks, which knows the time itself unless model code hangs in it."""

CUSTOM_METRIC_FAMILIES_MAX: Final = 1_000
"""Metric families that models make. A dashboard has tens; a model that makes one per request is stopped here."""

CUSTOM_METRICS_MAX: Final = 20_000
"""Series of models' metric families, all together: a scrape shows every one. Labels from user input are how it grows."""

CUSTOM_METRICS_OF_FAMILY_MAX: Final = 5_000
"""Series of one family: what one model that takes labels from requests can use up of them. Prometheus advises against more than a
few thousand; each takes a kilobyte here, and more in whoever scrapes."""

CUSTOM_METRIC_LABELS_MAX: Final = 32
"""Labels of one such series."""

CUSTOM_METRIC_BUCKETS_MAX: Final = 256
"""Buckets of one histogram of a model; each is a line of every scrape."""

CUSTOM_METRIC_TEXT_MAX: Final = 1024
"""Characters of a name, description, label or label value."""

CACHE_INSERTION_BYTES_WAITING_MAX: Final = 256 * MIB
"""Answers that wait to be written to Redis; beyond it they are not kept."""

REDIS_ENTRY_BYTES_MAX: Final = 64 * MIB
"""One answer in Redis, written or read: it is held in memory twice on either side, and Redis answers nobody else meanwhile."""

REDIS_PAUSE_NS_MIN: Final = 1_000_000_000
"""How long a Redis that did not answer is left alone; it doubles with each failure in a row."""

REDIS_PAUSE_NS_MAX: Final = 30_000_000_000
"""As long at most: so long it may take until a Redis that is back is noticed."""

MODEL_CALLS_OUTSTANDING_MAX: Final = 1024
"""Calls to other models that one instance has made and that have not ended; beyond it they are refused. A model that makes one
per row of a batch stays below; one that calls without ever waiting for answers does not."""

MODEL_CALL_BYTES_OUTSTANDING_MAX: Final = 4096 * MIB
"""The same in bytes of their inputs. One call may always be made, whatever its size."""

CALL_CIRCLE_CHECK_S: Final = 1
"""How often calls that take long are checked for waiting in a circle; most circles are seen when the call that closes them is
made."""

REPOSITORY_CALLS_WAITING_MAX: Final = 256
"""Calls of models to load or unload models that wait for the loop to turn to them."""

REMOTE_FRAME_BYTES_MAX: Final = 3 * 1024 * MIB
"""One frame between the engine and a frontend process: above the largest request message, as a tensor goes inline when there is
no room in the shared memory."""

REMOTE_INLINE_BYTES_MAX: Final = 32 * KIB
"""Tensors up to this size travel in their message: two copies cost less than a block of shared memory and its release."""

REMOTE_ARENA_BYTES: Final = 1024 * MIB
"""Shared memory for tensors, each way, of a frontend process: address space; only what is written takes memory. What finds no
room goes through the socket."""

REMOTE_ARENA_WARM_BYTES: Final = 64 * MIB
"""Pages of free shared memory that are kept for the next tensors; what lies above is given back when it is free."""

REMOTE_REQUESTS_MAX: Final = 65_536
"""Requests of one frontend process that are not answered; beyond it they are refused."""

REMOTE_CALLS_MAX: Final = 4_096
"""The same for calls to the other services."""

REMOTE_OUTBOUND_BYTES_MAX: Final = 512 * MIB
"""Bytes of a frontend process that the engine has not taken; beyond it requests are refused."""

REMOTE_WINDOW_RESPONSES: Final = 64
"""Responses of one request that are on their way to a frontend process; with as many the engine pauses the request."""

REMOTE_WINDOW_BYTES: Final = 4 * MIB
"""The same in bytes of their tensors."""

REMOTE_RECEIVE_BYTES: Final = 256 * KIB
"""Read from a frontend process in one turn of the loop: no process has more than its turn."""

REMOTE_STALL_S_MAX: Final = 30
"""A frontend process that takes nothing of what the engine has for it for so long is stuck, and replaced."""

REMOTE_SEEN_S_MAX: Final = 5.0
"""A call that changed what is served is answered when all frontend processes know it; one that says nothing for so long is not
waited for."""

REMOTE_START_S_MAX: Final = 60
"""From the start of a frontend process until it serves: Python and its modules from a cold disk take some seconds."""

REMOTE_RESTART_BACKOFF_S_MIN: Final = 0.1
"""Pause before a frontend process is replaced."""

REMOTE_RESTART_BACKOFF_S_MAX: Final = 5.0
"""The pause doubles, up to this, with each one that ended before it had lived REMOTE_HEALTHY_S."""

REMOTE_HEALTHY_S: Final = 10.0
"""A frontend process that lived for so long had started well."""

REMOTE_EXIT_GRACE_S: Final = 2.0
"""From a frontend process's last answer to its end; then it is killed."""

FRONTEND_PROCESSES_MAX: Final = 64
"""More frontends than cores is never useful, and the engine's loop is full long before."""

"""Bounds of gRPC and of HTTP/2."""

from __future__ import annotations

from typing import Final

from tpy.units import KIB, MIB

GRPC_MESSAGE_BYTES_MAX: Final = 2_147_483_647
"""One gRPC message either way: Triton's limit, and protobuf's."""

GRPC_HEADER_BYTES_MAX: Final = 16 * KIB
"""Headers of one call, counted as HTTP/2 does. gRPC's own hard limit."""

GRPC_STREAMS_PER_CONNECTION_MAX: Final = 1024
"""Calls of one connection at the same time. Clients hold back what is beyond; far above what a load generator uses."""

GRPC_STREAM_SEND_BYTES_MAX: Final = 1 * MIB
"""Response messages queued on one stream before its sender waits: keeps a fast reader busy, and bounds what a slow one costs."""

GRPC_CONNECTION_SLICE_NS_MAX: Final = 500_000
"""Time that a connection goes on with what has arrived, however long the turn: what is sent by clients that wait for answers."""

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

GRPC_CONTENTS_FIELDS_MAX: Final = 16_777_216
"""Strings of one input in bytes_contents, beyond GRPC_CONTENTS_PARSE_BYTES_MAX: as many as a raw tensor of
HTTP_INPUT_BYTES_MAX_DEFAULT can have. Each is looked at alone, some seconds for this many (in a thread)."""

GRPC_CONTENTS_PARSE_BYTES_MAX: Final = 2 * MIB
"""Typed contents other than packed numbers are given to protobuf up to this size: 8 ms at most, while nothing else runs."""

GRPC_INLINE_BYTES_MAX: Final = 64 * KIB
"""An inference request without its tensors, and typed contents, are parsed on the loop up to this size (three milliseconds at
most), else in a thread."""

GRPC_INLINE_STRING_BYTES_MAX: Final = 256 * KIB
"""BYTES elements up to this size together are copied on the loop, else in a thread."""

GRPC_CONTROL_BYTES_MAX: Final = 64 * KIB
"""One request of a method other than inference and load: names and settings."""

GRPC_CONTROL_FIELDS_MAX: Final = 256
"""Fields in it, and in the messages within it: ten times what is needed."""

GRPC_INLINE_CONTROL_BYTES_MAX: Final = 4 * KIB
"""Such requests are read on the loop up to this size, else in a thread."""

GRPC_LOAD_FIELDS_MAX: Final = 16_384
"""Fields of a load call, where each file that it brings is four."""

GRPC_INLINE_ELEMENTS_MAX: Final = 32_768
"""BYTES elements, and elements to classify, that are written into a response on the loop; more go to a thread."""

GRPC_INLINE_ENTRIES_MAX: Final = 100
"""Models, tensors, regions and rows of a response that is made on the loop (ten microseconds each at most)."""

GRPC_JOINED_BYTES_MAX: Final = 16 * KIB
"""A response up to this size is joined into one piece: copying it costs less than sending its parts."""

GRPC_INLINE_UNPACKED_BYTES_MAX: Final = 64 * KIB
"""A small compressed message that becomes no larger is decompressed on the loop (0.2 ms), others in a thread."""

GRPC_UNPACKED_BYTES_FREE: Final = 64 * MIB
"""A compressed message may become as large as this (HTTP_INPUT_BYTES_MAX_DEFAULT) whatever its own size: images that are all
zeros shrink to a thousandth."""

GRPC_UNPACKED_RATIO_MAX: Final = 100
"""Larger messages may become this many times as large as they arrived: far beyond what compression makes of data that is not
constant, while a few megabytes cannot become the two gigabytes that a message may have."""

GRPC_CODEC_THREADS_MAX: Final = 4
"""Threads that parse, encode and compress large gRPC messages at the same time."""

GRPC_STREAM_REQUESTS_MAX: Final = 256
"""Requests of one ModelStreamInfer that are not answered yet; beyond it the stream is not read on."""

GRPC_STREAM_SEQUENCE_REQUESTS_MAX: Final = 65_536
"""The same while one of them is of a sequence, as SEQUENCE_REQUESTS_WAITING_MAX: it may wait for the END of another sequence,
which is further on in the stream."""

GRPC_STREAM_SEQUENCE_BYTES_MAX: Final = 64 * MIB
"""Bytes of those requests, and of their answers that others hold up; beyond it GRPC_STREAM_REQUESTS_MAX holds again."""

GRPC_STREAM_WAITING_BYTES_MAX: Final = 16 * MIB
"""Responses of one ModelStreamInfer that wait for a slow reader; beyond it the stream is not read on."""

GRPC_STREAM_ANSWERS_BYTES_MAX: Final = 128 * MIB
"""Answers that are due on one ModelStreamInfer, each counted as the largest one before; beyond it the stream is not read on."""

GRPC_HEALTH_POLL_S: Final = 1
"""Between two looks of Watch at the readiness where changes are not announced."""

GRPC_SETUP_S_MAX: Final = 20
"""Time that a client may take for its HTTP/2 preface and the acknowledgement of our settings."""

GRPC_GOAWAY_ANSWER_S_MAX: Final = 1
"""Time that a connection that drains waits for the client to say that it knows; calls that it begins later are refused."""

GRPC_LINGER_S_MAX: Final = 1
"""Time that a connection that is ended waits for the client to close, so that the last bytes reach it."""

GRPC_STREAM_WINDOW_BYTES: Final = 4 * MIB
"""Bytes that a client may send on one call ahead of its handler; a larger message still arrives, credited as it comes."""

GRPC_CONNECTION_WINDOW_BYTES: Final = 64 * MIB
"""The same for all calls of a connection together: many slow stream handlers cannot hold more."""

GRPC_OUTPUT_BYTES_MAX: Final = 1 * MIB
"""Response data of a connection that is ready to be written: keeps a fast socket busy. The rest waits in its stream's queue."""

GRPC_OVERDUE_BYTES_MAX: Final = 4 * MIB
"""The same with headers and control frames, which do not wait: a client that makes us answer and never reads has gone too far."""

GRPC_IDLE_FRAMES_BURST_MAX: Final = 1000
"""HTTP/2 frames that carry nothing (pings, settings, priorities, empty data, window updates, unknown ones). Real clients send
some because of what they receive, so headers and data that we send earn GRPC_IDLE_FRAMES_PER_ANSWER_FRAME back; and some with
each call, so calls that they cancel do too, which are counted on their own. What is earned counts when the budget is used up,
like the time since then: a client that was quiet for long may send three times as many at once."""

GRPC_IDLE_FRAMES_PER_S_MAX: Final = 10
"""Frames that may come without any answers of ours, in the long run."""

GRPC_IDLE_FRAMES_PER_ANSWER_FRAME: Final = 4
"""A client answers a frame of data with at most two window updates and a ping."""

GRPC_RESETS_BURST_MAX: Final = 1000
"""Calls reset before their answer, by the client or because it broke a rule: opened and dropped faster than calls are answered,
they would evade the bound on streams. Every answered call earns one back."""

GRPC_RESETS_PER_S_MAX: Final = 200
"""Resets that may come without any answers of ours, in the long run."""

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

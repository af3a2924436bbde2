"""Bounds of HTTP bodies, heads and answers, of their JSON, of the platforms that speak HTTP (OpenAI, SageMaker), and of the
page and what it shows."""

from __future__ import annotations

from typing import Final

from tpy.units import KIB, MIB

HTTP_INPUT_BYTES_MAX_DEFAULT: Final = 64 * MIB
"""--http-max-input-size: Triton's default. Bounds the request body, before and after decompression."""

HTTP_RECEIVE_BYTES_MAX: Final = MIB
"""Of a large body, what one connection takes from its socket in one turn of the loop: some tenths of a millisecond. A sender as
fast as the loop would otherwise keep it in one call for as long as its body lasts."""

HTTP_HEADER_BYTES_MAX: Final = 64 * KIB
"""Request line plus headers. Generous for auth tokens, far below what hurts."""

HTTP_HELD_UP_S: Final = 1.0
"""A time-out that is noticed later than this was not the client's: it has as long again."""

HEADER_NAMES_REMEMBERED_MAX: Final = 256
"""Names of headers of which it is remembered whether the forward pattern matches them: those of real clients are a few dozen."""

HEADER_NAME_REMEMBERED_CHARACTERS_MAX: Final = 128
"""Longer names are matched anew each time, so that what is remembered stays below 100 KB."""

HTTP_PIPELINED_REQUESTS_MAX: Final = 16
"""Requests of one connection that may wait for their turn; the reader stops reading beyond it."""

HTTP_CHUNKS_MAX: Final = 65_536
"""Chunks in one chunked request body, as Triton 2.73."""

JSON_DEPTH_MAX: Final = 100
"""Nesting of `data` in a JSON request, as Triton 2.73."""

JSON_EXPLAIN_BYTES_MAX: Final = 64 * KIB
"""Broken JSON up to this size is scanned again for Triton's exact text and offset; that scan is slow, so longer documents get
the parser's own words."""

HTTP_STOP_IDLE_S: Final = 0.5
"""At shutdown requests on open HTTP connections are still answered, each as its connection's last. A connection whose
client sends nothing for so long is closed, so that idle ones do not hold the exit: enough for the next request of a client at
work."""

HTTP_CODEC_THREADS_MAX: Final = 4
"""Threads that parse, encode, compress and decompress large HTTP bodies at the same time."""

HTTP_INLINE_JSON_BYTES_MAX: Final = 256 * KIB
"""JSON up to this size is parsed on the loop (a few milliseconds), if it has few values; other goes to a thread."""

HTTP_INLINE_JSON_VALUES_MAX: Final = 8192
"""Values in it: as many take some milliseconds also where each is looked at, because one of them is wrong."""

HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX: Final = 16 * KIB
"""JSON up to this size cannot have more, and is not counted through."""

JSON_LISTS_BYTES_MAX: Final = 512
"""Of JSON up to this size for each input, and one more, numbers become lists before they become arrays: a second parser would
cost more than it saves."""

JSON_WHOLE_BYTES_MAX: Final = 256 * KIB
"""JSON up to this size is parsed as a whole, in a millisecond; of larger documents the arrays and strings are, in pieces."""

HTTP_V1_BODY_BYTES_MAX: Final = 4 * MIB
"""A request of KServe's older protocol is read as a whole, which lets nothing else run for some 40 ms at this size."""

JSON_OUTLINE_BYTES_MAX: Final = 512 * KIB
"""Bytes of a large JSON document besides arrays of numbers or strings and long strings. Parsed as a whole, in some
milliseconds at worst, and up to sixty times as large as Python's objects: room for thousands of tensors and parameters."""

HTTP_INLINE_JSON_ELEMENTS_MAX: Final = 32_768
"""Output elements up to this number are written as JSON on the loop; more go to a thread."""

INLINE_STRING_OUTPUT_BYTES_MAX: Final = 256 * KIB
"""Bytes of an answer's BYTES elements that Python writes on the loop, in whatever form (half a millisecond as JSON); more go to a
thread, unless the native codec writes them (a megabyte in 0.6 ms, at most). Few elements may be huge, so their number says
nothing."""

HTTP_INLINE_ENTRIES_MAX: Final = 256
"""Models, tensors and rows of a document that is made on the loop (ten microseconds each at most); longer ones are made in a
thread."""

HTTP_INLINE_BYTES_MAX: Final = 128 * KIB
"""Binary bodies up to this size are split into the elements of BYTES tensors on the loop (some milliseconds at worst)."""

HTTP_INLINE_COMPRESS_BYTES_MAX: Final = 32 * KIB
"""Response bodies up to this size are compressed on the loop."""

HTTP_STREAM_RESPONSES_MAX: Final = 64
"""Responses of one generate_stream that wait to be written; with as many the request is paused."""

HTTP_READER_BYTES_PER_S_MIN: Final = 4 * KIB
"""Rate at which an answer must be taken on the whole, after the write time-out: slower readers hold answers, and the shutdown."""

HTTP_STREAM_BYTES_MAX: Final = 1 * MIB
"""The same in bytes of their tensors."""

HTTP_DISCARDED_BODY_BYTES_MAX: Final = 1024 * MIB
"""An oversized body is read and thrown away up to this size, so that its sender reads the refusal and the connection lives."""

HTTP_CHUNK_OVERHEAD_BYTES_MAX: Final = 32
"""Bytes of framing per chunk of a chunked body; more (long chunk extensions) is abuse."""


OPENAI_TOKENS_DEFAULT: Final = 16
"""The default of --openai-default-max-tokens: OpenAI's for completions, and that of Triton's frontend."""

OPENAI_PROMPTS_MAX: Final = 2048
"""Prompts or inputs in a request: OpenAI's own bound for embeddings. Each is a request to the model."""

OPENAI_CHOICES_MAX: Final = 128
"""Choices for a prompt (`n`, `best_of`): OpenAI's own bound. Each is a request to the model."""

OPENAI_LOGPROBS_MAX: Final = 20
"""Candidates for each token (`logprobs`, `top_logprobs`): OpenAI's own bound, and vLLM's."""

OPENAI_ELEMENTS_MAX: Final = 65_536
"""Elements of the long arrays of a large request: each is an object. Settings have some hundreds, prompts OPENAI_PROMPTS_MAX."""

OPENAI_SETTINGS_BYTES_MAX: Final = 64 * MIB
"""Settings of a request times its prompts, each of which asks the model with all of them: 32 KiB with the most prompts."""

OPENAI_SETTING_BYTES: Final = 100
"""Memory of a setting besides its content."""

OPENAI_ASKS_AT_ONCE_MAX: Final = 16
"""Prompts of a request that are given to the model before others have their turn: a millisecond or two."""

OPENAI_STOPS_MAX: Final = 16
"""Stop sequences of a request. OpenAI allows 4; models of others are asked with more."""

OPENAI_URL_SCHEME_CHARACTERS_MAX: Final = 32
"""Of the URL of an image, where its scheme is looked for: behind it are up to 32 MiB of Base64."""

OPENAI_TEXT_CHARACTERS_MAX: Final = 16 * 1024 * 1024
"""Text of an answer that does not stream, which is collected in memory: far above what models write."""

OPENAI_TOKENIZER_BYTES_MAX: Final = 16 * MIB
"""A tokenizer's configuration or chat template: ten times the largest that are known."""

OPENAI_TEMPLATES_MAX: Final = 64
"""Compiled chat templates that are kept: about one for each model that is served."""

OPENAI_TOOL_CALLS_CHARACTERS_MAX: Final = 128 * 1024
"""Text of calls of tools, which is held back until it is complete: the bound of Triton's frontend. Longer text is text."""

OPENAI_TEMPLATE_S_MAX: Final = 10.0
"""Processor time of a chat template for one conversation: the longest that bodies have room for take a second."""

OPENAI_PROMPT_CHARACTERS_MAX: Final = 256 * MIB
"""Text that a chat template writes, or has in one value: above what it makes of the largest body."""

OPENAI_TEMPLATE_COUNT_MAX: Final = 10_000
"""Counts and widths that filters and methods of text get in a chat template: what they make has that many parts."""


SAGEMAKER_LOAD_BYTES_MAX: Final = 64 * 1024
"""The body of a load call: a name and a path. It is read on the loop."""

TORCHSERVE_REGISTER_BYTES_MAX: Final = 64 * 1024
"""The body of a registration: some names and numbers. It is read on the loop."""

TORCHSERVE_MODELS_DEFAULT: Final = 100
"""Models in a list, where the caller does not say how many, as TorchServe's."""

MLFLOW_BODY_BYTES_MAX: Final = 4 * MIB
"""A body of MLflow's scoring protocol is read as a whole, as one of KServe's older protocol."""

MLFLOW_RECORD_CELLS_PER_VALUE_MAX: Final = 4
MLFLOW_RECORD_CELLS_FREE: Final = 8192
"""Cells of the table of records: 4 for each value that they have, and 8192 besides. Records need not have the same members:
without a bound a body of 4 MiB, with another member in each, would make a table of 10^11 cells."""

MLFLOW_BATCHES_MAX: Final = 4096
"""Requests to a model for one body. Each costs some 100 us besides the model's own time; a body has room for two million rows."""

MLFLOW_BATCHES_AT_ONCE_MAX: Final = 16
"""Requests for one body that are in the model's queue at the same time: enough to keep a few instances at work."""

MLFLOW_SIGNATURES_KEPT_MAX: Final = 256
"""Signatures that are kept as they were read: about one for each model that is asked."""

SAGEMAKER_UNLOAD_S_MAX: Final = 350.0
"""Wait for a model to be unloaded, as Triton's: SageMaker gives up after 360 s."""

SAGEMAKER_UNLOAD_PAUSE_S: Final = 0.05
"""Pause between two looks at it."""


OVERVIEW_INTERVAL_S: Final = 1.0
"""Time between two looks at all models, while somebody reads the stream of them."""

OVERVIEW_SHARE_MAX: Final = 0.01
"""Share of the loop that the looks may take: after one that took long, as of very many models, the next one waits longer."""

OVERVIEW_VIEWERS_MAX: Final = 32
"""Readers of the stream at one port, who share each look. A few kilobytes each, and more while it is sent."""

OVERVIEW_STREAM_S_MAX: Final = 900.0
"""Length of one stream. Who wants to go on asks again, and whether he may is looked at again."""

GRAPH_NODES_MAX: Final = 1000
"""Nodes of a model's graph that are read and drawn. More, a browser draws slowly, and nobody looks at."""

GRAPH_FIELDS_MAX: Final = 1_000_000
"""Fields of a model's file that are looked at for its graph, in a thread: about a second. Each node that is not read is one."""

GRAPH_KEPT_BYTES_MAX: Final = 4 * MIB
"""Names and shapes of a graph, which are kept and sent: of 1,000 nodes some 200 KiB."""

GRAPH_NAME_BYTES_MAX: Final = KIB
"""A name in a graph; longer ones are cut."""

LOG_TAIL_LINES_MAX: Final = 1000
"""The log's newest lines that are kept in memory, half a megabyte as a rule."""

LOG_TAIL_LINE_CHARACTERS_MAX: Final = 4 * KIB
"""A kept line; longer ones, as tracebacks may be, are cut."""

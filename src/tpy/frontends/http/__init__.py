"""The HTTP frontend: Triton's HTTP API over HTTP/1.1, inference on its own path and every other route on Quart-Trio.

It decides statuses, headers and JSON shapes, never what a model does. Read in this order: serving.py (a port and its
application), connection.py (one HTTP/1.1 connection), infer.py (one inference call), app.py and control.py (every other route);
below them parser.py and replies.py (bytes in, answers out) and codec/ (tensors in JSON and in binary). Sockets, TLS and turns are
the transport's, tpy.frontends.transport.
"""

from tpy.frontends.http.options import API_CATEGORIES, HttpOptions, RestrictedApi, parse_restricted_apis
from tpy.frontends.http.serving import serve_http
from tpy.frontends.transport import BoundAddress

__all__ = [
    "API_CATEGORIES",
    "BoundAddress",
    "HttpOptions",
    "RestrictedApi",
    "parse_restricted_apis",
    "serve_http",
]

"""The HTTP frontend: Triton's HTTP API on Hypercorn, Trio and Quart-Trio, with a path of its own for inference over HTTP/1.1.

It decides statuses, headers and JSON shapes, never what a model does. Read in this order: server.py (a port, its connections, the
stop), connection.py (one HTTP/1.1 connection), infer.py (one inference call), app.py and control.py (every other route); below
them parser.py and replies.py (bytes in, answers out) and codec/ (tensors in JSON and in binary).
"""

from tpy.frontends.http.options import API_CATEGORIES, HttpOptions, RestrictedApi, parse_restricted_apis
from tpy.frontends.http.serving import serve_http
from tpy.frontends.listening import BoundAddress

__all__ = [
    "API_CATEGORIES",
    "BoundAddress",
    "HttpOptions",
    "RestrictedApi",
    "parse_restricted_apis",
    "serve_http",
]

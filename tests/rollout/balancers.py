"""A real HAProxy and a real nginx in front of three places for servers, each for HTTP and gRPC."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.e2e.waiting import wait_until

HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")

CHECK_MS = 200
"""HAProxy asks for readiness so often; two answers of a kind count."""

_HAPROXY = """
global
  maxconn 1000
defaults
  mode http
  timeout connect 2s
  timeout client 30s
  timeout server 30s
  default-server check inter {check_ms}ms fall 2 rise 2
  option httpchk GET /v2/health/ready
  option redispatch
frontend http
  bind 127.0.0.1:{http}
  default_backend http
frontend grpc
  bind 127.0.0.1:{grpc} proto h2
  default_backend grpc
backend http
{http_servers}
backend grpc
{grpc_servers}
"""
_NGINX = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 1000000;
  upstream http_pods {{ {http_servers} keepalive 16; }}
  upstream grpc_pods {{ {grpc_servers} keepalive 16; }}
  server {{
    listen 127.0.0.1:{http};
    location / {{
      proxy_pass http://http_pods; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_next_upstream error timeout http_503 non_idempotent;
    }}
  }}
  server {{
    listen 127.0.0.1:{grpc} http2;
    location / {{ grpc_pass grpc://grpc_pods; grpc_next_upstream error timeout non_idempotent; }}
  }}
}}
"""


class Place(NamedTuple):
    """The ports of one pod."""

    http: int
    grpc: int
    metrics: int


class Doors(NamedTuple):
    """The ports of one balancer."""

    http: int
    grpc: int


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now. They are not given to clients of this machine, whose ports are higher."""
    found: list[int] = []
    for port in range(23000, 32000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError("no free ports")


@contextmanager
def balancers(folder: Path, places: Sequence[Place]) -> Iterator[dict[str, Doors]]:
    """HAProxy, which asks for readiness, and nginx, which tries the next server where one does not take the connection."""
    assert HAPROXY is not None
    assert NGINX is not None
    haproxy, nginx = Doors(*free_ports(2)), Doors(*free_ports(4)[2:])
    folder.mkdir(exist_ok=True)
    (folder / "haproxy.cfg").write_text(
        _HAPROXY.format(
            check_ms=CHECK_MS,
            http=haproxy.http,
            grpc=haproxy.grpc,
            http_servers="\n".join(f"  server pod{place.http} 127.0.0.1:{place.http}" for place in places),
            grpc_servers="\n".join(
                f"  server pod{place.grpc} 127.0.0.1:{place.grpc} proto h2 check port {place.http} check-proto h1"
                for place in places
            ),
        )
    )
    (folder / "nginx.conf").write_text(
        _NGINX.format(
            folder=folder,
            http=nginx.http,
            grpc=nginx.grpc,
            http_servers=" ".join(f"server 127.0.0.1:{place.http} max_fails=1 fail_timeout=1s;" for place in places),
            grpc_servers=" ".join(f"server 127.0.0.1:{place.grpc} max_fails=1 fail_timeout=1s;" for place in places),
        )
    )
    with ExitStack() as stack:
        for command, port in (
            ([HAPROXY, "-db", "-f", str(folder / "haproxy.cfg")], haproxy.http),
            ([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")], nginx.http),
        ):
            stack.enter_context(_running(command, port, folder / f"{Path(command[0]).name}.out"))
        yield {"haproxy": haproxy, "nginx": nginx}


@contextmanager
def _running(command: list[str], port: int, output: Path) -> Iterator[None]:
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)

    def takes_connections() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended with {process.returncode}: {output.read_text(errors='replace')}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(takes_connections)
        yield
    finally:
        process.terminate()
        process.wait(30)

"""Conversations between the machine and the h2 library as a client: two implementations of one protocol, which must agree."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from grpclib.const import Status

from fuzz.chance import Chance
from fuzz.grpc.wire import cuts, random_rules
from fuzz.target import Violation
from tpy.frontends.grpc.transport.core.calls import RESPONSE, trailers
from tpy.frontends.grpc.transport.core.http2 import ConnectionEnded, DataArrived, Http2Server, RequestBegan, StreamEnded
from tpy.http2.codes import Http2Code
from tpy.units import NS_PER_S

INVARIANT = (
    "between the machine and h2 every byte of every request and response arrives in order, within all windows and frame sizes,"
    " cancelled ones up to where they were cut; nobody complains, and no stream is left over"
)

RULES = ("begin", "send", "cancel", "answer", "open windows", "change settings", "to server", "to client")


class _Call:
    """Both sides' view of one stream."""

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.sent = b""
        self.sent_end = False
        self.seen = b""
        self.seen_end = False
        self.replied = b""
        self.status: Status | None = None
        self.reply = b""
        self.reply_status: str | None = None
        self.begun = self.headers_sent = False
        self.client_done = self.server_done = False
        """Cancelled, or ended, as far as that side knows."""
        self.cancelled = False


class Conversation:
    """A client, a server, and what is under way between them."""

    def __init__(self, chance: Chance) -> None:
        self.chance = chance
        self.rules = random_rules(chance)
        self.now_ns = 0
        self.server = Http2Server(self.rules, 0)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        # h2 looks at its own limit of frames once for all that it reads at a time: it must know it from the beginning.
        frame_bytes_max = chance.choice((16_384, 17_000, 40_000))
        values = {h2.settings.SettingCodes.MAX_FRAME_SIZE: frame_bytes_max}
        self.client.local_settings = h2.settings.Settings(client=True, initial_values=values)
        self.client.max_inbound_frame_size = frame_bytes_max
        self.client.initiate_connection()
        self.settings_unanswered = 1
        self.calls: dict[int, _Call] = {}

    # What the two do

    def begin(self) -> None:
        self.chance.took("begin")
        if self.client.open_outbound_streams >= self.client.remote_settings.max_concurrent_streams:
            return
        call = _Call(self.client.get_next_available_stream_id())
        self.calls[call.stream_id] = call
        fields = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C"), (":authority", "x"), ("te", "trailers")]
        fields.append(("content-type", "application/grpc"))
        if self.chance.random() < 0.3:
            fields.append((f"x-{self.chance.randrange(3)}", "y" * self.chance.choice((0, 5, 50))))
        priority = {"priority_weight": 5} if self.chance.random() < 0.1 else {}
        self.client.send_headers(call.stream_id, fields, **priority)

    def send(self, call: _Call) -> None:
        self.chance.took("send")
        if call.client_done or call.sent_end:
            return
        room = min(self.client.local_flow_control_window(call.stream_id), self.client.max_outbound_frame_size)
        pad = self.chance.choice((None, None, None, 0, 7))
        room -= 0 if pad is None else pad + 1
        if room < 0:
            return
        body = self.chance.randbytes(min(self.chance.choice((0, 1, 80, 5000, 20_000)), room))
        call.sent_end = self.chance.random() < 0.4
        call.sent += body
        self.client.send_data(call.stream_id, body, end_stream=call.sent_end, pad_length=pad)

    def cancel(self, call: _Call) -> None:
        self.chance.took("cancel")
        if not call.client_done:
            call.client_done = call.cancelled = True
            self.client.reset_stream(call.stream_id, error_code=8)

    def answer(self, call: _Call) -> None:
        self.chance.took("answer")
        if not call.begun or call.server_done:
            return
        parts = [self.chance.randbytes(self.chance.choice((0, 1, 100, 30_000))) for _ in range(self.chance.randint(1, 3))]
        size = sum(map(len, parts))
        status = self.chance.choice((Status.OK, Status.OK, Status.NOT_FOUND))
        end = trailers(status, "ä" if status is not Status.OK else "", [("t", "u")] if self.chance.random() < 0.3 else ())
        rule = self.chance.random()
        if rule < 0.1:
            call.server_done = call.cancelled = True
            self.server.reset(call.stream_id, Http2Code.CANCEL)
        elif rule < 0.4:
            if not call.headers_sent:
                call.headers_sent = True
                self.server.send_headers(call.stream_id, RESPONSE)
            call.replied += b"".join(parts)
            self.server.send_data(call.stream_id, parts, size)
        elif rule < 0.7 and call.headers_sent:
            call.server_done, call.status = True, status
            self.server.finish(call.stream_id, end)
        elif not call.headers_sent:
            call.server_done, call.status = True, status
            call.replied += b"".join(parts)
            self.server.respond(call.stream_id, RESPONSE, parts, size, end)

    def open_windows(self, size: int) -> None:
        self.chance.took("open windows")
        if self.client.inbound_flow_control_window < 2**30:
            self.client.increment_flow_control_window(size)
        for call in self.calls.values():
            if not call.client_done and self.client.remote_flow_control_window(call.stream_id) < 2**30:
                self.client.increment_flow_control_window(size, call.stream_id)

    def change_settings(self) -> None:
        self.chance.took("change settings")
        if self.settings_unanswered:
            return  # h2 takes the answer to one SETTINGS frame for an answer to all
        setting = h2.settings.SettingCodes
        values = {
            setting.INITIAL_WINDOW_SIZE: (0, 1, 10, 1000, 5000, 100_000, 500_000),
            setting.HEADER_TABLE_SIZE: (0, 50, 4096, 65_536),
        }
        names = self.chance.sample(sorted(values), self.chance.randint(1, 2))
        self.client.update_settings({name: self.chance.choice(values[name]) for name in names})
        self.settings_unanswered += 1

    # What travels

    def to_server(self) -> None:
        self.chance.took("to server")
        for piece in cuts(self.chance, self.client.data_to_send()):
            for event in self.server.receive(piece, self.now_ns):
                if isinstance(event, ConnectionEnded):
                    raise Violation(f"the server ended the connection: {event.code.name} {event.text}")
                call = self.calls[event.stream_id]
                if isinstance(event, RequestBegan):
                    call.begun = True
                elif isinstance(event, StreamEnded):
                    if not event.by_peer:
                        raise Violation(f"the server failed stream {event.stream_id}: {event.code}")
                    call.server_done = True
                elif isinstance(event, DataArrived):
                    call.seen += event.data
                    call.seen_end = call.seen_end or event.ended
                    if self.chance.random() < 0.9:
                        self.server.credit(event.stream_id, len(event.data))

    def to_client(self) -> None:
        self.chance.took("to client")
        output = b"".join(self.server.take_output())
        for piece in cuts(self.chance, output):
            try:
                events = self.client.receive_data(piece)
            except h2.exceptions.ProtocolError as error:
                raise Violation(f"the client complains: {error!r}") from error
            for event in events:
                self._on_client_event(event)

    def _on_client_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):
            raise Violation("the client was told to go away")
        if isinstance(event, h2.events.SettingsAcknowledged):
            self.settings_unanswered -= 1
        call = self.calls.get(getattr(event, "stream_id", None) or 0)
        if call is None:
            return
        if isinstance(event, h2.events.DataReceived):
            call.reply += event.data or b""
            if event.flow_controlled_length and not call.client_done:
                self.client.acknowledge_received_data(event.flow_controlled_length, call.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            call.reply_status = dict(event.headers or ())["grpc-status"]  # type: ignore[assignment,call-overload,index]
        elif isinstance(event, h2.events.StreamReset):
            call.client_done = True
        elif isinstance(event, h2.events.StreamEnded):
            call.client_done = call.client_done or call.sent_end

    # The end

    def settle(self) -> None:
        """Let everything arrive, and end what is open."""
        for _ in range(100):
            self.now_ns += 10 * NS_PER_S
            self.open_windows(2**20)
            for call in self.calls.values():
                if not call.client_done and not call.sent_end:
                    call.sent_end = True
                    self.client.end_stream(call.stream_id)
                if call.begun and not call.server_done:
                    if call.headers_sent:
                        call.server_done, call.status = True, Status.OK
                        self.server.finish(call.stream_id, trailers(Status.OK, "", ()))
                    else:
                        self.answer(call)
            self.to_server()
            self.to_client()
            if not self.server.open_streams and not self.server.has_output:
                break
        self.to_server()
        self.to_client()

    def check(self) -> None:
        """Compare the arrived with the sent."""
        if self.server.open_streams:
            raise Violation(f"{self.server.open_streams} streams are left over")
        for call in self.calls.values():
            if not call.sent.startswith(call.seen):
                raise Violation(f"stream {call.stream_id}: the server saw other bytes than were sent")
            if not call.replied.startswith(call.reply):
                raise Violation(f"stream {call.stream_id}: the client saw other bytes than were replied")
            if call.seen_end and call.seen != call.sent:
                raise Violation(f"stream {call.stream_id}: the request ended {len(call.sent) - len(call.seen)} bytes too early")
            if not call.cancelled and (call.reply != call.replied or call.status is None):
                raise Violation(
                    f"stream {call.stream_id}: {len(call.reply)} of {len(call.replied)} bytes of the response arrived"
                )
            if not call.cancelled and call.status is not None and call.reply_status != str(call.status.value):
                raise Violation(f"stream {call.stream_id}: status {call.reply_status}, expected {call.status}")


def run(chance: Chance) -> int:
    """One conversation."""
    talk = Conversation(chance)
    for _ in range(2):  # our windows may be smaller than what a client assumes before it knows them
        talk.to_client()
        talk.to_server()
    talk.to_client()
    talk.change_settings()
    steps = 0
    for _ in chance.rounds((50, 60, 150)):
        steps += 1
        talk.now_ns += chance.choice((0, NS_PER_S // 10, NS_PER_S))
        rule = chance.random()
        call = chance.choice(list(talk.calls.values())) if talk.calls else None
        if rule < 0.2 or call is None:
            talk.begin()
        elif rule < 0.4:
            talk.send(call)
        elif rule < 0.43:
            talk.cancel(call)
        elif rule < 0.6:
            talk.answer(call)
        elif rule < 0.65:
            talk.open_windows(chance.choice((1, 100, 10_000)))
        elif rule < 0.67:
            talk.change_settings()
        elif rule < 0.69:
            talk.client.ping(b"12345678")
        elif rule < 0.70:
            talk.server.ping()
        elif rule < 0.85:
            talk.to_server()
        else:
            talk.to_client()
    talk.settle()
    talk.check()
    return steps

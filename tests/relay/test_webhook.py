"""The webhook sink: what a receiver gets, and what its answers do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest

from ops.sinks import webhook, webhook_login
from ops.sinks.address import open_sink
from ops.sinks.base import (
    EventRefused,
    RelayBlock,
    Sink,
    SinkLease,
    SinkMisconfigured,
    SinkPaused,
    SinkUnavailable,
)
from ops.sinks.cloudevents import to_json
from ops.sinks.sent import SentEvents
from ops.sinks.webhook import WebhookChannel, WebhookSink
from penstock.errors import ConfigurationError
from tests.kit.proof import proves
from tests.relay.blocks import TOPIC, block, event
from tests.relay.receivers import SECRET, Call, Receiver, Says, receiving

LEASE = SinkLease("to-the-sink", TOPIC, TOPIC, 0, 1, 1)
NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that takes everything."""
    with receiving() as made:
        yield made


Open = Callable[..., WebhookChannel]


@pytest.fixture
def channel(receiver: Receiver) -> Iterator[Open]:
    """Opens channels to the receiver, by the options after `#`."""
    made: list[WebhookChannel] = []

    def opened(options: str = "", **environ: str) -> WebhookChannel:
        sink = sink_of(receiver, options, **environ)
        made.append(sink.open(LEASE))
        return made[-1]

    yield opened
    for each in made:
        each.close()


def sink_of(receiver: Receiver, options: str = "", **environ: str) -> WebhookSink:
    """A sink on the receiver."""
    sink = open_sink(f"{receiver.address}#{options}", environ=receiver.environ(**environ))
    assert isinstance(sink, WebhookSink)
    sink.now = NOW.timestamp
    return sink


def send(sink: Sink, sent: RelayBlock) -> None:
    """Send a block over a channel of its own, as a relay does after every error."""
    with closing(sink.open(LEASE)) as opened:
        opened.send_block(sent)


def sequences(calls: list[Call]) -> list[int]:
    """The sequences of the events, in the order in which they came."""
    bodies = [json.loads(call.body) for call in calls]
    each = [event for body in bodies for event in (body if isinstance(body, list) else [body])]
    return [int(event["sequence"]) for event in each]


def test_each_event_is_a_call_that_is_signed(receiver: Receiver, channel: Open) -> None:
    channel().send_block(block(1, 3))
    assert [call.body for call in receiver.calls] == [to_json(event(n)) for n in (1, 2, 3)]
    first = receiver.calls[0]
    assert first.path == "/in"
    assert first.headers["content-type"] == "application/cloudevents+json"
    assert first.headers["webhook-id"] == str(event(1).event_id)
    assert first.headers["webhook-timestamp"] == str(int(NOW.timestamp()))
    content = f"{event(1).event_id}.{int(NOW.timestamp())}.".encode() + first.body
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    assert first.headers["webhook-signature"] == f"v1,{expected}"
    assert receiver.connections == 1


def test_the_signature_is_the_one_of_the_standard() -> None:
    """The example that the specification of Standard Webhooks gives."""
    signing = webhook_login.keys(SECRET, "X")
    body = b'{"test": 2432232314}'
    made = webhook_login.signatures(signing, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_secret_in_a_file_is_replaced_without_a_restart(
    receiver: Receiver, channel: Open, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    opened = channel(PENSTOCK_WEBHOOK_SECRET="", PENSTOCK_WEBHOOK_SECRET_FILE=str(file))
    opened.send_block(block(1, 1))
    new = "whsec_" + base64.b64encode(b"n" * 32).decode()
    file.write_text(f"{new} {SECRET}\n")
    opened.send_block(block(2, 2))
    first, both = (call.headers["webhook-signature"].split() for call in receiver.calls)
    assert [each[:3] for each in (*first, *both)] == ["v1,"] * 3
    assert len(set(both)) == 2


def test_a_batch_is_one_call_with_an_id_of_its_own(receiver: Receiver, channel: Open) -> None:
    channel("batch=10").send_block(block(1, 25))
    assert [len(json.loads(call.body)) for call in receiver.calls] == [10, 10, 5]
    assert sequences(receiver.calls) == list(range(1, 26))
    headers = [call.headers for call in receiver.calls]
    assert {each["content-type"] for each in headers} == {"application/cloudevents-batch+json"}
    assert len({each["webhook-id"] for each in headers}) == 3
    channel("batch=10").send_block(block(1, 25, reopened=True))
    again = [call.headers["webhook-id"] for call in receiver.calls[3:]]
    assert again == [each["webhook-id"] for each in headers]


def test_a_batch_of_too_many_bytes_is_cut(receiver: Receiver, channel: Open) -> None:
    large = tuple(event(n, payload=json.dumps("x" * 400_000).encode()) for n in range(1, 6))
    channel("batch=5").send_block(block(1, 5, events=large))
    assert [len(json.loads(call.body)) for call in receiver.calls] == [2, 2, 1]


STATUSES: dict[int, type[Exception]] = {
    301: SinkMisconfigured,
    400: EventRefused,
    401: SinkMisconfigured,
    403: SinkMisconfigured,
    404: SinkMisconfigured,
    405: SinkMisconfigured,
    408: SinkUnavailable,
    410: SinkPaused,
    413: EventRefused,
    422: EventRefused,
    425: SinkUnavailable,
    429: SinkUnavailable,
    500: SinkUnavailable,
    503: SinkUnavailable,
    599: SinkUnavailable,
}


@pytest.mark.parametrize("status", STATUSES)
def test_what_an_answer_means(receiver: Receiver, channel: Open, status: int) -> None:
    receiver.answer = lambda _: Says(status, {"Location": receiver.address}, b"no \x07 beeps")
    wanted = STATUSES[status]
    with pytest.raises(wanted) as caught:
        channel().send_block(block(1, 3))
    assert type(caught.value) is wanted
    assert f"answered {status}" in str(caught.value)
    assert "(no beeps)" in str(caught.value)
    assert len(receiver.calls) == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        (format_datetime(datetime(2026, 11, 26, 12, 2, tzinfo=UTC), usegmt=True), 120.0),
        (format_datetime(datetime(2025, 11, 26, 12, 2, tzinfo=UTC), usegmt=True), 0.0),
        ("99999999999", 86_400.0),
        ("soon", None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_obeyed(
    receiver: Receiver, channel: Open, status: int, text: str, seconds: float | None
) -> None:
    receiver.answer = lambda _: Says(status, {"Retry-After": text})
    with pytest.raises(SinkUnavailable) as caught:
        channel().send_block(block(1, 1))
    assert caught.value.retry_after == seconds


def _refused_in_the_middle(receiver: Receiver, sink: WebhookSink) -> list[int]:
    """Event 5 is refused, and buried: the relay opens a new channel for the rest of the block."""
    receiver.answer = lambda call: Says(422 if sequences([call]) == [5] else 204)
    with pytest.raises(EventRefused) as refused:
        send(sink, block(1, 9))
    assert refused.value.sequence == 5
    rest = tuple(event(n) for n in range(1, 10) if n != 5)
    send(sink, block(1, 9, events=rest, reopened=True))
    return sequences(receiver.calls)


@proves("a sink that only takes gets everything")
def test_nothing_confirmed_is_sent_again_after_a_refusal(receiver: Receiver) -> None:
    assert _refused_in_the_middle(receiver, sink_of(receiver)) == list(range(1, 10))


@proves("a sink that only takes gets everything", guard="SentEvents")
def test_without_the_memory_it_is(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SentEvents, "of", lambda *_: set())
    found = _refused_in_the_middle(receiver, sink_of(receiver))
    assert found == [1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 7, 8, 9]


@proves("a sink that only takes gets everything")
def test_a_new_lease_sends_the_block_again(receiver: Receiver) -> None:
    """A subscription that was moved back has new leases, and wants everything again."""
    sink = sink_of(receiver)
    send(sink, block(1, 2))
    send(sink, block(1, 2, reopened=True))
    send(sink, block(1, 2, lease_epoch=2))
    assert sequences(receiver.calls) == [1, 2, 1, 2]


def test_of_a_refused_batch_only_the_refused_event_is_left_out(receiver: Receiver) -> None:
    sink = sink_of(receiver, "batch=4")
    taken: list[int] = []

    def answer(call: Call) -> Says:
        found = sequences([call])
        if 3 in found:
            return Says(400)
        taken.extend(found)
        return Says(200)

    receiver.answer = answer
    with pytest.raises(EventRefused) as refused:
        send(sink, block(1, 8))
    assert refused.value.sequence == 3
    rest = tuple(event(n) for n in range(1, 9) if n != 3)
    send(sink, block(1, 8, events=rest, reopened=True))
    assert taken == [1, 2, 4, 5, 6, 7, 8]


class _Overlaps:
    """Holds calls until so many are there at once, and notes two of one key at a time."""

    def __init__(self, together: int) -> None:
        self._barrier = threading.Barrier(together)
        self._lock = threading.Lock()
        self._now: list[str] = []
        self.met = self.overlaps = 0

    def __call__(self, call: Call) -> Says:
        key = json.loads(call.body)["partitionkey"]
        with self._lock:
            self.overlaps += key in self._now
            self._now.append(key)
        try:
            self._barrier.wait(10)
            self.met += 1
        except threading.BrokenBarrierError:
            self._barrier.reset()
        with self._lock:
            self._now.remove(key)
        return Says()


@proves("a sink that only takes gets everything")
def test_keys_go_at_the_same_time_and_each_in_order(receiver: Receiver, channel: Open) -> None:
    overlaps = receiver.answer = _Overlaps(7)
    channel("concurrency=7").send_block(block(1, 28))
    assert overlaps.met == 28
    assert overlaps.overlaps == 0
    found = sequences(receiver.calls)
    assert sorted(found) == list(range(1, 29))
    for key in range(7):
        assert [n for n in found if n % 7 == key] == [n for n in range(1, 29) if n % 7 == key]


@proves("a sink that only takes gets everything", guard="by_key")
def test_without_lanes_calls_of_a_key_overlap(
    receiver: Receiver, channel: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "by_key", lambda each: each.sequence)
    overlaps = receiver.answer = _Overlaps(14)
    channel("concurrency=14").send_block(block(1, 14))
    assert overlaps.overlaps > 0


def test_parallel_calls_stop_after_a_failure_and_the_rest_is_sent_once(
    receiver: Receiver,
) -> None:
    sink = sink_of(receiver, "concurrency=4")
    taken: list[int] = []

    def answer(call: Call) -> Says:
        sequence = sequences([call])[0]
        if sequence == 9 and not taken.count(9) and len(receiver.calls) < 60:
            receiver.calls.extend([call] * 60)
            return Says(503)
        taken.append(sequence)
        return Says()

    receiver.answer = answer
    with pytest.raises(SinkUnavailable):
        send(sink, block(1, 40))
    assert len(taken) < 40
    send(sink, block(1, 40, reopened=True))
    assert sorted(taken) == list(range(1, 41))


def test_a_token_that_expired_is_renewed_once(receiver: Receiver, channel: Open) -> None:
    granted: list[str] = []

    def answer(call: Call) -> Says:
        if call.path == "/token":
            granted.append(f"t0ken-{len(granted)}")
            body = {"access_token": granted[-1], "expires_in": 3600}
            return Says(200, {}, json.dumps(body).encode())
        is_valid = call.headers["authorization"] == "Bearer t0ken-1"
        return Says(204 if is_valid else 401)

    receiver.answer = answer
    url = f"http://127.0.0.1:{receiver.port}/token"
    login = {
        "PENSTOCK_WEBHOOK_SHOP_SECRET": SECRET,
        "PENSTOCK_WEBHOOK_SHOP_OAUTH_URL": url,
        "PENSTOCK_WEBHOOK_SHOP_OAUTH_CLIENT_ID": "the client",
        "PENSTOCK_WEBHOOK_SHOP_OAUTH_CLIENT_SECRET": "hunter2",
        "PENSTOCK_WEBHOOK_SHOP_OAUTH_SCOPE": "events",
    }
    channel("login=shop", **login).send_block(block(1, 3))
    assert [call.path for call in receiver.calls] == [
        "/token",
        "/in",
        "/token",
        "/in",
        "/in",
        "/in",
    ]
    asked = receiver.calls[0]
    assert base64.b64decode(asked.headers["authorization"].split()[1]) == b"the+client:hunter2"
    assert asked.body == b"grant_type=client_credentials&scope=events"
    granted.append("")  # from now on no token is valid
    with pytest.raises(SinkMisconfigured, match="401"):
        channel("login=shop", **login).send_block(block(4, 4))


def test_a_client_that_is_refused_is_said_without_its_secret(receiver: Receiver) -> None:
    receiver.answer = lambda call: Says(401, {}, call.headers["authorization"].encode())
    url = f"http://127.0.0.1:{receiver.port}/token"
    sink = sink_of(
        receiver,
        PENSTOCK_WEBHOOK_OAUTH_URL=url,
        PENSTOCK_WEBHOOK_OAUTH_CLIENT_ID="c",
        PENSTOCK_WEBHOOK_OAUTH_CLIENT_SECRET="hunter2",
    )
    with pytest.raises(SinkMisconfigured, match="OAUTH_CLIENT_ID") as caught:
        sink.preflight(TOPIC, 1)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("slash", ["/", r"\/", r"\u002f", r"\u002F", "%2F", "%2f"])
def test_a_receiver_that_repeats_a_secret_does_not_bring_it_into_errors(
    receiver: Receiver, channel: Open, slash: str
) -> None:
    """Also as JSON or an address has it."""

    def answer(call: Call) -> Says:
        return Says(400, {}, f"bad {call.headers['authorization']}".replace("/", slash).encode())

    receiver.answer = answer
    with pytest.raises(EventRefused, match=r"\(bad Bearer \.\.\.\)"):
        channel(PENSTOCK_WEBHOOK_TOKEN="hunt/er2").send_block(block(1, 1))


def test_without_a_secret_the_relay_does_not_start(receiver: Receiver) -> None:
    with pytest.raises(SinkMisconfigured, match="would not be signed"):
        sink_of(receiver, PENSTOCK_WEBHOOK_SECRET="").preflight(TOPIC, 1)
    with pytest.raises(SinkMisconfigured, match="24 to 64 random bytes") as caught:
        sink_of(receiver, PENSTOCK_WEBHOOK_SECRET="hunter2").preflight(TOPIC, 1)
    assert "hunter2" not in str(caught.value)
    unsigned = sink_of(receiver, "signature=none", PENSTOCK_WEBHOOK_SECRET="")
    unsigned.preflight(TOPIC, 1)
    send(unsigned, block(1, 1))
    assert "webhook-signature" not in receiver.calls[0].headers


def test_a_channel_that_is_closed_in_a_call_sends_nothing_later(
    receiver: Receiver, channel: Open
) -> None:
    opened = channel()
    inside, failed = threading.Event(), threading.Event()

    def answer(_: Call) -> Says:
        inside.set()
        failed.wait(20)
        return Says()

    receiver.answer = answer
    found: list[BaseException] = []

    def send() -> None:
        try:
            opened.send_block(block(1, 5))
        except SinkUnavailable as error:
            found.append(error)
        failed.set()

    thread = threading.Thread(target=send)
    thread.start()
    assert inside.wait(20)
    opened.close()
    thread.join(20)
    assert len(found) == 1
    assert len(receiver.calls) == 1


def test_a_sink_beside_calls_a_path_of_its_own(receiver: Receiver) -> None:
    sink = open_sink(receiver.address, environ=receiver.environ(), beside="backfill-7")
    send(sink, block(1, 1))
    assert receiver.calls[0].path == "/in/backfill-7"


WRONG = {
    "webhook+https://host/in#retries=3": "not known: retries",
    "webhook+https://host/in#batch=0": "batch=, which is no number from 1 to 1000",
    "webhook+https://host/in#concurrency=x": "concurrency=, which is no number",
    "webhook+https://host/in#login=a-b": "login=, which is no part of a name",
    "webhook+https://host/in#signature=v2": "signature=, which can only be none",
    "webhook+https://host:8443/in": "port 8443, which is not allowed",
    "webhook+https://host:x/in": "port that is no number",
    "webhook+https:///in": "no host",
    "webhook+http://host/in": "is not https",
    "webhook+https://ann:s3cret@host/in": "a login or a secret in it",
    "webhook+https://host/in?api_key=s3cret": "a login or a secret in it",
    "webhook+https://[::1/in": "cannot be read",
    "webhook+https://host/a b": "characters that an address cannot have",
}


@pytest.mark.parametrize("address", WRONG)
def test_what_is_wrong_with_an_address_is_said(address: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_sink(address)
    assert WRONG[address] in str(caught.value)
    assert caught.value.hint
    assert "s3cret" not in str(caught.value)

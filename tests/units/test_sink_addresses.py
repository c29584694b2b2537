"""The error for an unusable sink address says what to write."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.sinks.address import absolute_address, open_sink, promise_of
from ops.sinks.base import SinkMisconfigured
from ops.sinks.jsonl import JsonlSink
from ops.sinks.pulsar_admin import PulsarAdmin
from penstock.errors import ConfigurationError

PULSAR = "pulsar://host:6650/public/default"
WRONG = {
    PULSAR: "names no admin interface: add admin=",
    f"{PULSAR}?create=true": "put the whole address in quotes",
    f"{PULSAR}?admin=host:8080": "no http:// or https:// address",
    f"{PULSAR}?admin=http://": "no http:// or https:// address",
    f"{PULSAR}?admin=http://host:8080&creat=true": "not known: creat",
    f"{PULSAR}?admin=http://host:8080&create=yes": "neither true nor false",
    "pigeon://host": "there is no sink pigeon",
    "host:s3cret@x": "a login or a secret in it",
    "pulsar://ann:s3cret@host:6650/a/b?admin=http://host:8080": "a login or a secret in it",
    f"{PULSAR}?admin=http://ann:s3cret@host:8080": "a login or a secret in it",
    f"{PULSAR}?admin=http%3A%2F%2Fann%3As3cret%40host": "a login or a secret in it",
    f"{PULSAR}?admin=http://host:8080&token=s3cret": "PENSTOCK_PULSAR_TOKEN",
    f"{PULSAR}?admin=http://host:8080/?authToken=s3cret": "a login or a secret in it",
    "kafka://h:9092/p?acks=0": "not known: acks",
    "kafka://h:9092/p?create=yes": "neither true nor false",
    "kafka://h:9092/p?mechanism=GSSAPI": "not one of PLAIN",
    "kafka://h:9092/p/q?create=true": "a prefix that Kafka does not take",
    "s3cret": "has no scheme",
}


@pytest.mark.parametrize("address", WRONG)
def test_what_is_wrong_is_said_with_the_forms(address: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_sink(address)
    assert WRONG[address] in str(caught.value)
    hint = caught.value.hint
    forms = ("?admin=http://host:8080", "kafka://host:9092", "PENSTOCK_PULSAR_TOKEN")
    assert any(each in hint for each in forms)
    assert "s3cret" not in str(caught.value)


def test_what_each_promises() -> None:
    assert promise_of("jsonl:out") == promise_of(PULSAR) == "exactly once"
    assert promise_of("kafka://h:9092/p") == "exactly once, for readers of committed records"
    assert promise_of("kafka://h:9092/p?exactly=false") == "at least once"
    assert promise_of("webhook+https://h/in") == "at least once"
    assert not promise_of("pigeon://h")


def test_a_sink_beside_has_places_of_its_own(tmp_path: Path) -> None:
    """A folder, and Pulsar topics, that carry the name; without one they are those of a relay."""
    address = f"jsonl:{tmp_path}"
    files = open_sink(address, beside="backfill-7")
    assert isinstance(files, JsonlSink)
    assert files.directory == tmp_path / "backfill-7"
    plain = open_sink(address)
    assert isinstance(plain, JsonlSink)
    assert plain.directory == tmp_path
    sinks = pytest.importorskip("ops.sinks.pulsar")
    broker = f"{PULSAR}?admin=http://host:8080"
    for beside, name in (("", "a.b"), ("backfill-7", "a.b.backfill-7")):
        sink = open_sink(broker, beside=beside)
        assert isinstance(sink, sinks.PulsarSink)
        assert sink.pulsar_topic("a/b") == f"persistent://public/default/{name}"


def test_an_address_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recorded in a request, and the runner may stand in another folder."""
    monkeypatch.chdir(tmp_path)
    assert absolute_address("jsonl:out put") == f"jsonl:{tmp_path}/out%20put"
    assert absolute_address(f"{PULSAR}?admin=http://h:1") == f"{PULSAR}?admin=http://h:1"
    with pytest.raises(ConfigurationError):
        absolute_address("pigeon://host")


class _Answer(http.server.BaseHTTPRequestHandler):
    """Some other web server: a page for everything, 404 for what is put."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def do_PUT(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The address of a web server that is no Pulsar."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_admin_interface_that_is_none_is_said(elsewhere: str) -> None:
    admin = PulsarAdmin(elsewhere)
    with pytest.raises(SinkMisconfigured, match="not Pulsar's admin interface") as caught:
        admin.partitions("persistent://public/default/x")
    assert "webServicePort" in (caught.value.hint or "")
    with pytest.raises(SinkMisconfigured, match="answered 404") as caught:
        admin.create("persistent://public/default/x", 1)
    assert "pulsar-admin namespaces list" in (caught.value.hint or "")


def test_addresses_of_one_pulsar_topic_are_one() -> None:
    """A relay compares each place for itself, so what is one topic there has one name."""
    topics = {"b/x": "persistent://t/n/named", "a/x": "persistent://t/n/named", "c.d": "own"}
    sinks = pytest.importorskip("ops.sinks.pulsar")
    sink = sinks.PulsarSink("pulsar://h:1", admin_url="http://h:2", topics=topics)
    assert {sink.address_of(each) for each in ("a/x", "b/x")} == {"a/x"}
    assert {sink.address_of(each) for each in ("e/f", "e.f")} == {"e.f"}
    # The address with dots is another topic's name here.
    assert [sink.address_of(each) for each in ("c/d", "c.d")] == ["c/d", "c.d"]
    for each in (*topics, "c/d", "e/f"):
        assert sink.pulsar_topic(sink.address_of(each)) == sink.pulsar_topic(each)

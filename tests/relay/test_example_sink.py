"""The sink of `examples/sink`, found by its entry point, on a stand-in that speaks Kinesis."""

from __future__ import annotations

import base64
import json
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from ops.sinks.address import GROUP, open_sink
from ops.sinks.base import EventRefused, SinkLease, SinkMisconfigured
from penstock.errors import ConfigurationError
from tests.relay.blocks import TOPIC, block, event
from tests.relay.receivers import Call, Says, receiving

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sink"
LEASE = SinkLease("to-the-sink", TOPIC, TOPIC, 0, 1, 1)


class Stream:
    """What a stream of Kinesis answers.  Each third record is not taken at its first attempt."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.calls: list[int] = []
        self._attempts: Counter[int] = Counter()

    def __call__(self, call: Call) -> Says:
        """One request."""
        verb = call.headers["x-amz-target"].partition(".")[2]
        given = json.loads(call.body)
        if given["StreamName"] != "events":
            error = {"__type": "ResourceNotFoundException", "message": "no such stream"}
            return Says(400, {}, json.dumps(error).encode())
        if verb != "PutRecords":
            return Says(200, {}, b"{}")
        self.calls.append(len(given["Records"]))
        answers = [self._take(base64.b64decode(each["Data"])) for each in given["Records"]]
        return Says(200, {}, json.dumps({"FailedRecordCount": 0, "Records": answers}).encode())

    def _take(self, data: bytes) -> dict[str, str]:
        sequence = int(json.loads(data)["sequence"])
        self._attempts[sequence] += 1
        if sequence % 3 == 0 and self._attempts[sequence] == 1:
            return {"ErrorCode": "ProvisionedThroughputExceededException"}
        self.taken.append(sequence)
        return {"SequenceNumber": str(sequence), "ShardId": "0"}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package as pip leaves it: its module, and the entry points that its project names."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    found = tmp_path / "penstock_kinesis-1.dist-info"
    found.mkdir()
    (found / "METADATA").write_text(f"Name: {project['name']}\nVersion: 1\n")
    lines = [f"{name} = {value}" for name, value in project["entry-points"][GROUP].items()]
    (found / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(EXAMPLE), *sys.path])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.delitem(sys.modules, "penstock_kinesis", raising=False)


def test_without_the_package_there_is_no_such_sink() -> None:
    with pytest.raises(ConfigurationError, match="there is no sink kinesis://"):
        open_sink("kinesis://eu-central-1/events")


@pytest.mark.usefixtures("installed")
def test_the_sink_of_the_example_sends_everything() -> None:
    with receiving() as receiver:
        receiver.answer = stream = Stream()
        endpoint = f"endpoint=http://127.0.0.1:{receiver.port}"
        sink = open_sink(f"kinesis://eu-central-1/events?{endpoint}")
        sink.preflight(TOPIC, 1)
        channel = sink.open(LEASE)
        assert channel.seen() is None
        channel.send_block(block(1, 1_200))
        assert sorted(stream.taken) == list(range(1, 1_201))
        assert max(stream.calls) == 500
        too_large = event(1, payload=json.dumps("x" * 1_100_000).encode())
        with pytest.raises(EventRefused, match="Kinesis takes 1 MiB"):
            channel.send_block(block(1, 1, events=(too_large,)))
        other = open_sink(f"kinesis://eu-central-1/events?{endpoint}", beside="again")
        with pytest.raises(SinkMisconfigured, match="events-again"):
            other.preflight(TOPIC, 1)


def test_it_is_as_short_as_the_page_says() -> None:
    lines = (EXAMPLE / "penstock_kinesis.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 80

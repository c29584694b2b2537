"""Options that cannot be meant are refused, and say what to write instead."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from penstock.errors import ConfigurationError, InvalidArgument, InvalidName, PenstockError
from penstock.spark.columns import chosen
from penstock.spark.options import Place, read_options

TOPIC = {"topic": "bank/accounts"}
SECRET = "geheim"
URL = f"postgresql://me:{SECRET}@host/db"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, "topic is missing"),
        ({"topic": "accounts"}, "no namespace"),
        ({**TOPIC, "eventPerTask": "5"}, "did you mean eventsPerTask"),
        ({**TOPIC, "path": "x"}, "no option 'path'"),
        ({**TOPIC, "url": URL, "urlVariable": "X"}, "both given"),
        ({**TOPIC, "url": f"oracle://me:{SECRET}@host/db"}, "not known"),
        ({**TOPIC, "urlVariable": URL}, "not the name of an environment variable"),
        ({**TOPIC, "partitions": "1-"}, "list numbers and ranges"),
        ({**TOPIC, "partitions": "5-1"}, "list numbers and ranges"),
        ({**TOPIC, "types": "[1]"}, "other things than texts"),
        ({**TOPIC, "eventsPerTask": "0"}, "from 1 to"),
        ({**TOPIC, "eventsPerTask": "9" * 5_000}, "from 1 to"),
        ({**TOPIC, "startingOffsets": '{"0": ' + "9" * 5_000 + "}"}, "positions by partition"),
        ({**TOPIC, "startingOffsets": '{"' + "9" * 5_000 + '": 1}'}, "for partition '9"),
        ({**TOPIC, "startingTimestamp": "9" * 5_000}, "with its zone"),
        ({**TOPIC, "maxConnections": "many"}, "from 1 to"),
        ({**TOPIC, "startingOffsets": "first"}, "earliest"),
        ({**TOPIC, "startingOffsets": "[1]"}, "positions by partition"),
        ({**TOPIC, "startingOffsets": '{"0": -1}'}, "partition '0'"),
        ({**TOPIC, "startingOffsets": '{"0": true}'}, "partition '0'"),
        ({**TOPIC, "startingOffsets": "latest", "startingTimestamp": "1"}, "both given"),
        ({**TOPIC, "endingTimestamp": "2026-01-31T09:30:00"}, "with its zone"),
        ({**TOPIC, "startingTimestamp": "soon"}, "with its zone"),
        ({**TOPIC, "maxTriggerDelay": "1 day"}, "ms, s, m or h"),
        ({**TOPIC, "minEventsPerTrigger": "9", "maxEventsPerTrigger": "8"}, "is above"),
        ({**TOPIC, "failOnHistoryChange": "maybe"}, "true or false"),
        ({**TOPIC, "subscription": " "}, "is empty"),
        ({**TOPIC, "decodeSchema": "a int"}, "decodeSchema is given without decode"),
        ({**TOPIC, "decodeMode": "failfast"}, "decodeMode is given without decode"),
        ({**TOPIC, "decode": "protobuf"}, "give json or avro"),
        ({**TOPIC, "decode": "avro"}, "give decodeSchema too"),
        ({**TOPIC, "decodeWriters": "{}"}, "decodeWriters is given without decode"),
        ({**TOPIC, "decode": "json", "decodeWriters": "{}"}, "decodeWriters is given with"),
        ({**TOPIC, "decode": "json", "decodeMode": "strict"}, "permissive, failfast or"),
        ({**TOPIC, "decode": "json", "decodeSample": "0"}, "from 1 to"),
        (
            {**TOPIC, "decode": "json", "decodeSample": "9", "decodeSchema": "a int"},
            "decodeSchema and decodeSample are both given",
        ),
    ],
)
def test_a_bad_option_is_refused(given: dict[str, str], match: str) -> None:
    with pytest.raises((InvalidArgument, InvalidName, ConfigurationError), match=match) as refused:
        read_options(CaseInsensitiveDict(given))
    assert SECRET not in str(refused.value)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidArgument, match="a stream has no endingOffsets"):
        read_options({**TOPIC, "endingOffsets": "latest"}, streaming=True)


def test_options_are_read() -> None:
    given = {
        **TOPIC, "PARTITIONS": "0,3, 8-10", "types": "a, b", "startingOffsets": '{"0": 7}',
        "endingTimestamp": "2026-01-31T09:30:00+01:00", "maxTriggerDelay": "250ms",
    }  # fmt: skip
    found = read_options(CaseInsensitiveDict(given))
    assert found.partitions == frozenset({0, 3, 8, 9, 10})
    assert found.types == ("a", "b")
    assert found.starting == Place(positions={0: 7})
    assert found.ending == Place(time=datetime(2026, 1, 31, 8, 30, tzinfo=UTC))
    assert found.pace.max_delay_seconds == 0.25
    milliseconds = read_options({**TOPIC, "startingTimestamp": "1500"})
    assert milliseconds.starting.time == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    listed = read_options({**TOPIC, "types": '["a,b", "c"]'})
    assert listed.types == ("a,b", "c")


def test_an_address_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SECRET not in repr(read_options({**TOPIC, "url": URL}))
    monkeypatch.delenv("ABSENT", raising=False)
    absent = read_options({**TOPIC, "urlVariable": "ABSENT"})
    with pytest.raises(ConfigurationError, match="ABSENT"):
        absent.address.connect()
    monkeypatch.setenv("ABSENT", f"postgresql://me:{SECRET}@127.0.0.1:1/none")
    with pytest.raises(PenstockError) as refused:
        absent.address.connect()
    assert SECRET not in str(refused.value)


def test_a_schema_of_the_user_is_a_part_of_ours() -> None:
    ours = StructType().add("payload", "binary").add("sequence", "long")
    assert chosen(ours) == ("payload", "sequence")
    with pytest.raises(InvalidArgument, match="'body', which events do not have"):
        chosen(StructType().add("body", "binary"))
    with pytest.raises(InvalidArgument, match="it is bigint"):
        chosen(StructType().add("sequence", "integer"))

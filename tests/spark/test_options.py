"""Options that cannot be meant are refused, and say what to write instead."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from penstock.errors import ConfigurationError, InvalidArgument, InvalidName, PenstockError
from penstock.spark.columns import chosen
from penstock.spark.options import ReadBound, read_options, write_options
from penstock.spark.writing import BatchWriter, _messages
from penstock.topics import validation

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
        ({"topic": URL}, "topic is a URL .* not repeated"),
        ({"topic": URL.replace("postgresql", "mysql")}, "the database goes to url"),
        ({**TOPIC, "partitions": URL}, "partitions is a URL"),
        ({**TOPIC, "targets": f"s3://key:{SECRET}@bucket"}, "no JSON object of texts"),
        ({**TOPIC, "targets": "[" * 100_000}, "no JSON object of texts"),
        ({**TOPIC, "types": "[1]"}, "other things than texts"),
        ({**TOPIC, "types": ""}, "with an empty one"),
        ({**TOPIC, "types": "a,"}, "leave it out for all"),
        ({**TOPIC, "types": "[]"}, "an empty list"),
        ({**TOPIC, "startingTimestamp": "0001-01-01T00:00:00+10:00"}, "with its zone"),
        ({**TOPIC, "endingTimestamp": "9999-12-31T23:00:00-10:00"}, "with its zone"),
        ({**TOPIC, "startingTimestamp": "2", "endingTimestamp": "1"}, "is after endingTimestamp"),
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
    assert found.starting == ReadBound(positions={0: 7})
    assert found.ending == ReadBound(time=datetime(2026, 1, 31, 8, 30, tzinfo=UTC))
    assert found.pace.max_delay_seconds == 0.25
    milliseconds = read_options({**TOPIC, "startingTimestamp": "1500"})
    assert milliseconds.starting.time == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    listed = read_options({**TOPIC, "types": '["a,b", "c"]'})
    assert listed.types == ("a,b", "c")
    assert read_options({**TOPIC, "types": '[""]'}).types == ("",)
    last = read_options({**TOPIC, "startingTimestamp": "253402300799999"}).starting
    assert last == ReadBound(time=datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC))
    assert read_options({**TOPIC, "types": "https://a.b/c@2"}).types == ("https://a.b/c@2",)


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
    twice = StructType().add("key", "string").add("key", "string")
    with pytest.raises(InvalidArgument, match="'key' twice"):
        chosen(twice)
    twice = StructType().add("payload", "binary").add("payload", "binary")
    with pytest.raises(InvalidArgument, match="two columns of the data frame have one name"):
        BatchWriter(write_options(TOPIC), twice, overwrite=False)
    payload = StructType().add("payload", "binary")
    BatchWriter(write_options(TOPIC), payload.add("not_before", "timestamp"), overwrite=False)
    ntz = StructType().add("payload", "binary").add("not_before", "timestamp_ntz")
    with pytest.raises(InvalidArgument, match="not_before as timestamp_ntz") as refused:
        BatchWriter(write_options(TOPIC), ntz, overwrite=False)
    assert refused.value.hint == "cast it to timestamp_ltz"


def test_a_time_that_python_does_not_know_is_refused_by_name() -> None:
    """Spark's timestamps reach beyond the years of Python's."""
    far = pa.array([10**18], pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array([b"1"]), far], names=["payload", "not_before"])
    with pytest.raises(InvalidArgument, match="not_before of the data frame"):
        list(_messages(iter([batch]), write_options(TOPIC)))


@pytest.mark.parametrize("url", [URL, URL.replace("postgresql", "mysql+pymysql")])
def test_a_url_that_is_given_as_a_topic_is_not_repeated(url: str) -> None:
    """Guard: wherever a topic or a namespace is asked for."""
    for required in (validation.topic, validation.namespace):
        with pytest.raises(InvalidName, match="is a URL, which is not repeated") as refused:
            required(url)
        assert SECRET not in str(refused.value)

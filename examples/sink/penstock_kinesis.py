"""A relay to Amazon Kinesis: `penstock relay SUBSCRIPTION kinesis://REGION/STREAM`.

Kinesis only takes: every event arrives at least once. After a crash the open block is sent again,
with the same ids. Of a call it may take some records and not others; those are sent again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qs

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from ops.sinks.base import (
    EventRefused,
    RelayBlock,
    SinkLease,
    SinkMisconfigured,
    SinkUnavailable,
    encoded,
)
from ops.sinks.cloudevents import to_json
from penstock.log.restores import Seen
from penstock.records import Event

RECORDS, RECORD_BYTES, CALL_BYTES = 500, 1 << 20, 5 << 20


def open_sink(parts: SplitResult, environ: Mapping[str, str], beside: str) -> KinesisSink:
    """The sink of an address.  The login is boto3's own, so ``environ`` is not asked."""
    endpoint = parse_qs(parts.query).get("endpoint", [None])[-1]
    client = boto3.client("kinesis", region_name=parts.netloc, endpoint_url=endpoint)
    return KinesisSink(client, parts.path.strip("/") + (f"-{beside}" if beside else ""))


class KinesisSink:
    name = "kinesis"
    max_block_events = 2_000
    max_block_bytes = CALL_BYTES

    def __init__(self, client: Any, stream: str) -> None:
        self._client, self._stream = client, stream

    def preflight(self, topic: str, partitions: int) -> None:
        try:
            self._client.describe_stream_summary(StreamName=self._stream)
        except ClientError as error:
            raise SinkMisconfigured(f"the stream {self._stream}: {error}") from error

    def open(self, lease: SinkLease) -> KinesisSink:
        return self  # boto3's client serves all partitions, from any thread

    def seen(self) -> Seen | None:
        return None  # Kinesis does not tell what came last

    def send_block(self, block: RelayBlock) -> None:
        for chunk in _calls(block.events):
            try:
                while chunk:
                    chunk = self._left(chunk)
            except (ClientError, BotoCoreError) as error:
                raise SinkUnavailable(f"the stream {self._stream}: {error}") from error

    def close(self) -> None:
        pass

    def _left(self, chunk: list[tuple[Event, bytes]]) -> list[tuple[Event, bytes]]:
        records = [{"Data": data, "PartitionKey": event.key or "-"} for event, data in chunk]
        answer = self._client.put_records(StreamName=self._stream, Records=records)
        failed = [n for n, each in enumerate(answer["Records"]) if "ErrorCode" in each]
        if len(failed) == len(chunk):
            raise SinkUnavailable(f"{self._stream}: {answer['Records'][0]['ErrorCode']}")
        return [chunk[n] for n in failed]


def _calls(events: Sequence[Event]) -> Iterator[list[tuple[Event, bytes]]]:
    chunk: list[tuple[Event, bytes]] = []
    for event, data in zip(events, encoded(events, to_json), strict=True):
        if len(data) > RECORD_BYTES - 1024:
            raise EventRefused(event.sequence, f"{len(data)} bytes, Kinesis takes 1 MiB")
        if len(chunk) == RECORDS or sum(len(d) for _, d in chunk) + len(data) > CALL_BYTES - 1024:
            yield chunk
            chunk = []
        chunk.append((event, data))
    if chunk:
        yield chunk

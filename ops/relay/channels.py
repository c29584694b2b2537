"""The open channels of a relay: one for each partition that it holds."""

from __future__ import annotations

from collections.abc import Iterable

from ops.sinks.base import Channel, Sink, SinkLease
from penstock.records import Lease


class Channels:
    """Opens the channel of a partition when it is needed, and another one for another lease."""

    def __init__(self, sink: Sink, relay: str) -> None:
        self.sink = sink
        self._relay = relay
        self._open: dict[int, tuple[SinkLease, Channel]] = {}

    def of(self, lease: Lease, known_as: str) -> Channel:
        """The channel of a partition under its present lease."""
        wanted = SinkLease(
            relay=self._relay,
            topic=lease.topic,
            known_as=known_as,
            partition=lease.partition,
            history=lease.history,
            lease_epoch=lease.lease_epoch,
        )
        known = self._open.get(lease.partition_id)
        if known is not None and known[0] == wanted:
            return known[1]
        self.drop(lease)
        channel = self.sink.open(wanted)
        self._open[lease.partition_id] = wanted, channel
        return channel

    def drop(self, lease: Lease) -> None:
        """Close a partition's channel: after an error, or when its lease has ended."""
        self._close(lease.partition_id)

    def keep(self, leases: Iterable[Lease]) -> None:
        """Close the channels of all other partitions."""
        for each in self._open.keys() - {lease.partition_id for lease in leases}:
            self._close(each)

    def close(self) -> None:
        """Close all."""
        self.keep(())

    def _close(self, partition_id: int) -> None:
        _, channel = self._open.pop(partition_id, (None, None))
        if channel is not None:
            channel.close()

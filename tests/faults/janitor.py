"""Cleans while the log is under attack: seals, copies, moves low sequences, drops slices.

What it copies it writes down first, so that the checker knows what stood in a slice that is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
from typing import Any

from ops.retention.clean import drop_slices
from ops.seal import missing_copies, seal
from penstock import database, log
from penstock.records import LogEpoch
from tests.faults.history import Recorder
from tests.faults.hooks import label_of
from tests.kit.cleaning import clean_believing

TARGET = "disk"
EPOCH_EVENTS = 2_000


def clean_on(given: argparse.Namespace, recorder: Recorder, stop: threading.Event) -> None:
    """Round upon round until told to stop; what stood in the way is in the history."""
    while not stop.wait(given.pause):
        try:
            _round(given, recorder, stop)
        except Exception as error:
            recorder.write("trouble", "ok", error=f"{type(error).__name__}: {error}"[:200])


def _round(given: argparse.Namespace, recorder: Recorder, stop: threading.Event) -> None:
    with contextlib.closing(database.connect(given.url)) as own:
        seal(own, given.topic, max_events=EPOCH_EVENTS)
        for epoch in missing_copies(own, given.topic, TARGET):
            if stop.is_set():
                return
            _copy(own, recorder, epoch)
    begun = recorder.begun()
    for each in clean_believing(given.url, given.topic, TARGET):
        if each.low_sequence > each.old_low_sequence:
            where = {"partition": each.partition, "low": each.low_sequence}
            recorder.write("cleaned", "ok", **where, **begun)
    for dropped in drop_slices(given.url):
        names = {"parent": dropped.parent, "slice": dropped.slice, "state": str(dropped.state)}
        recorder.write("slice", "ok", **names, detail=dropped.detail)


def _copy(connection: Any, recorder: Recorder, epoch: LogEpoch) -> None:
    """Read it, write it down, and say so; the database compares with its seal."""
    events = []
    first = epoch.first_sequence
    while first <= epoch.last_sequence:
        wanted = min(1000, epoch.last_sequence - first + 1)
        found = log.fetch(connection, epoch.topic, epoch.partition, first, wanted)
        if not found:
            recorder.write("copied", "fail", partition=epoch.partition, first=first)
            return
        events += [[label_of(e), e.key, e.sequenced_at.timestamp()] for e in found]
        first = found[-1].sequence + 1
    recorder.write(
        "copied", "ok", partition=epoch.partition, first=epoch.first_sequence, events=events
    )
    database.call(
        connection, "record_copy", topic=epoch.topic, partition=epoch.partition,
        log_epoch=epoch.log_epoch, target=TARGET, location="history",
        event_count=len(events), checksum=epoch.checksum, layout=1, first_row=0,
    )  # fmt: skip

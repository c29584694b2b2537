"""An archive that 0.1 wrote: files that never change, which every later version reads.

Spark wrote it, once.  ``told.json`` is what the database said then, of copies and of events.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.archive import copy_reader
from penstock.archive.checksum import EpochChecksum
from penstock.archive.copies import Copy
from penstock.archive.copy_reader import read_copy
from penstock.archive.log_reader import events_of
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.errors import CopyDamaged
from penstock.records import Event
from tests.kit.proof import proves

FOLDER = Path(__file__).parent / "written_by_0_1"
TOLD: dict[str, Any] = json.loads((FOLDER / "told.json").read_text("utf-8"))
COPIES = [Copy(**each) for each in TOLD["copies"]]


@pytest.fixture
def old() -> Target:
    """The target as it was left."""
    return Target("old", str(FOLDER / "archive"))


def as_told(event: Event) -> list[Any]:
    return [
        event.partition, event.sequence, str(event.event_id), event.key, event.type,
        event.content_type, event.headers, event.payload.hex(), event.created_at.isoformat(),
        event.sequenced_at.isoformat(), event.history,
    ]  # fmt: skip


@proves("D10 for later versions")
@pytest.mark.parametrize("copy", COPIES, ids=["several", "one"])
def test_its_events_are_read(old: Target, copy: Copy) -> None:
    """Each field, and the checksum by which a copy is verified."""
    checksum, found = EpochChecksum(), []
    for batch in read_copy(old, copy, copy.first_sequence, copy.last_sequence):
        checksum.add(batch)
        found += [as_told(each) for each in events_of("shop/orders", batch)]
    assert found == [each for each in TOLD["events"] if each[0] == copy.partition]
    assert checksum.hexdigest() == copy.checksum


@proves("D10 for later versions", guard="`_COLUMNS`")
def test_without_its_columns_it_is_damaged(old: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a later version has one column more, and forgets the columns of before."""
    more = {**copy_reader._COLUMNS[1], "more": pa.string()}
    monkeypatch.setattr(copy_reader, "_COLUMNS", [more])
    (copy, _) = COPIES
    with pytest.raises(CopyDamaged, match="its columns are not those of the archive"):
        list(read_copy(old, copy, copy.first_sequence, copy.last_sequence))


@proves("D10 for later versions")
def test_its_table_says_what_it_holds(old: Target) -> None:
    table = ArchiveTable(old, COPIES[0].known_as)
    assert table.committed().keys() == {each.key for each in COPIES}
    assert table.newest() == {0: (1, 3), 1: (1, 1)}

"""The whole history out of the archive as its own writer leaves it: equal to the log."""

from __future__ import annotations

from pathlib import Path

from penstock import archive
from penstock.archive.targets import Target
from penstock.database import call
from tests.archive.logs import Log, archived, bring
from tests.kit.cleaning import clean_believing


def test_hot_and_cold_equal_the_log(log: Log, target: Target, tmp_path: Path) -> None:
    """Byte for byte, with the first log epochs dropped; again when one of two targets is gone."""
    sealed = archived(log, target)
    second = Target("second", str(tmp_path / "second"))
    bring(log, second, sealed)
    log.publish_many(50)
    published = [log.rows_of(partition) for partition in range(2)]
    log.connection.execute(
        "SELECT penstock.set_retention(%s, 0, 2, targets => %s)",
        (log.topic, [target.name, second.name]),
    )
    clean_believing(log.url, log.topic, target.name, second.name)
    assert all(low > 1 for _, low in call(log.connection, "low_sequences", topic=log.topic))
    for places in ([target, second], [second, target]):
        for partition in range(2):
            with archive.read(log.url, log.topic, partition, targets=places) as reader:
                found = [tuple(row.values()) for batch in reader for row in batch.to_pylist()]
            assert [row[:1] + row[2:] for row in found] == published[partition]
            assert not reader.failures
    target.root.rename(tmp_path / "unmounted")
    with archive.read(log.url, log.topic, 0, targets=[target, second]) as reader:
        found = [tuple(row.values()) for batch in reader for row in batch.to_pylist()]
    assert [row[:1] + row[2:] for row in found] == published[0]
    assert [each.target for each in reader.failures] == [target.name]

"""Dead letters in other topics: an erasure finds them by where they come from, hot and cold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops import erase as module
from ops.erase import What, erase
from penstock import database
from penstock.archive.targets import Target
from penstock.errors import ErasureRefused
from penstock.publishing.publish import publish
from penstock.subscriptions import dead_letters, forwarding, queue
from tests.archive.logs import Log, bring
from tests.contract.databases import ContractDatabase
from tests.kit.copies import drop
from tests.kit.erasing import left_in
from tests.kit.log import drain, read, topic
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, TOPIC, filled, pass_time

DEAD, LAST, MOVED = "tests/dead", "tests/last", "tests/moved"


def _die(own: Any, name: str) -> None:
    drain(own)
    pass_time(own, 1)
    (held,) = queue.receive(own, name)
    queue.reject(own, name, [held.receipt], reason="cannot read secret")


def _forwarded(db: ContractDatabase) -> Any:
    """A letter with the key k in DEAD, where it died again, so that it lies in LAST too."""
    own = db.connect()
    filled(own, 0, max_failures=1)
    topic(own, 1, DEAD)
    topic(own, 1, LAST)
    queue.subscribe(own, "second", [DEAD])
    queue.configure(own, "second", max_failures=1)
    forwarding.set_dead_letters_to(own, QUEUE, DEAD)
    forwarding.set_dead_letters_to(own, "second", LAST)
    publish(own, TOPIC, b"secret", key="k")
    _die(own, QUEUE)
    _die(own, "second")
    drain(own)
    return own


def _payloads(own: Any) -> list[list[bytes]]:
    return [[each.payload for each in read(own, name=name)] for name in (TOPIC, DEAD, LAST)]


@proves("dead letters that go on")
@pytest.mark.parametrize("by_key", [True, False])
def test_a_letter_is_erased_in_every_topic_that_it_went_to(
    db: ContractDatabase, by_key: bool
) -> None:
    """By the key, which the copies have too, or by the id, which they have not."""
    own = _forwarded(db)
    assert _payloads(own) == [[b"secret"]] * 3
    (event,) = read(own, name=TOPIC)
    what = What(TOPIC, key="k") if by_key else What(TOPIC, event_id=str(event.event_id))
    done = erase(db.url, what, "art. 17", [])
    assert (done.events_in_database, done.copies) == (1, 2)
    assert _payloads(own) == [[b""]] * 3
    for name in (QUEUE, "second"):
        (letter,) = dead_letters.dead_letters(own, name)
        assert (letter.payload_bytes, letter.reason[:9]) == (0, "erased by")
    assert erase(db.url, what, "art. 17", []).copies == 0


def test_a_topic_is_searched_once_for_all_copies(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many letters of a key went there."""
    own = _forwarded(db)
    for _ in range(2):
        publish(own, TOPIC, b"secret", key="k")
        _die(own, QUEUE)
    drain(own)
    searched = []
    searched_by = database.call

    def noted(connection: Any, name: str, **binds: Any) -> Any:
        if name == "find_erasable":
            searched.append(binds["topic"])
        return searched_by(connection, name, **binds)

    monkeypatch.setattr(module, "call", noted)
    assert erase(db.url, What(TOPIC, key="k"), "art. 17", []).copies == 4
    assert sorted(searched) == [DEAD, LAST, TOPIC]
    assert _payloads(own) == [[b""] * 3, [b""] * 3, [b""]]


@proves("dead letters that go on")
def test_a_copy_that_only_the_archive_has_is_erased_there(
    db: ContractDatabase, tmp_path: Path
) -> None:
    """Also when its letter, and the event, are gone: the origin is kept apart."""
    own = _forwarded(db)
    target = Target("a", str(tmp_path / "a"))
    log = Log(own, db.url, DEAD)
    bring(log, target, log.seal())
    letters = dead_letters.dead_letters(own, QUEUE) + dead_letters.dead_letters(own, "second")
    for letter, name in zip(letters, (QUEUE, "second"), strict=True):
        dead_letters.drop(own, name, [letter.id])
    drop(own, DEAD, [target])
    assert left_in(target) == 1
    done = erase(db.url, What(TOPIC, key="k", replace_key=True), "art. 17", [target])
    assert done.copies == 2
    assert left_in(target) == 0
    assert [each.key for each in read(own, name=LAST)] == [None]
    column = "key" if db.engine == "postgres" else "`key`"
    assert db.run(f"SELECT COUNT({column}) FROM penstock.letter_copies") == [(0,)]


def test_a_copy_without_a_sequence_is_waited_for(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the erasure says so; the same command ends it."""
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.0)
    own = _forwarded(db)
    publish(own, TOPIC, b"secret", key="k")
    _die(own, QUEUE)
    with pytest.raises(ErasureRefused, match="has no sequence yet"):
        erase(db.url, What(TOPIC, key="k"), "art. 17", [])
    drain(own)
    assert erase(db.url, What(TOPIC, key="k"), "art. 17", []).copies == 3


def test_a_copy_that_is_moved_on_meanwhile_is_erased_too(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the copies are listed until nothing is new."""
    own = _forwarded(db)
    topic(own, 1, MOVED)
    queue.subscribe(own, "reader", [DEAD])
    listed = module._copies

    def before_the_move(*asked: Any) -> Any:
        monkeypatch.setattr(module, "_copies", listed)
        found = listed(*asked)
        assert forwarding.move_all(own, "reader", to=MOVED).moved == 1
        drain(own)
        return found

    monkeypatch.setattr(module, "_copies", before_the_move)
    assert erase(db.url, What(TOPIC, key="k"), "art. 17", []).copies == 3
    assert [each.payload for each in read(own, name=MOVED)] == [b""]

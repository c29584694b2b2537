"""Event ids are UUIDs of version 7 and rise within a process."""

from __future__ import annotations

import threading
import time
import uuid

from penstock.publishing.event_ids import uuid7, uuid7s


def test_an_id_is_a_uuid_of_version_7_with_the_time() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()
    after = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    # Ids made faster than the clock's steps run ahead of it by their counter.
    assert before <= made.int >> 80 <= after + 100


def test_ids_rise_within_a_process() -> None:
    made = [uuid7() for _ in range(2_000)] + uuid7s(5_000) + [uuid7()]
    assert made == sorted(set(made))


def test_ids_of_threads_differ() -> None:
    found: list[uuid.UUID] = []
    threads = [threading.Thread(target=lambda: found.extend(uuid7s(2_000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 8_000

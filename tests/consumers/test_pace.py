"""The pace of the sequencer: at once while there is work, ever less often while there is none."""

from __future__ import annotations

import threading

from penstock import database
from penstock.database.dialect import CommitListener
from penstock.publishing.publish import publish
from penstock.upkeep.workers import BUSY_PAUSE, SequencerWorker
from tests.consumers.conftest import TOPIC, Connection

LONGEST = 0.05
#: Turns before an event is published, and after it.
IDLE, AFTER = 8, 3


class Turns(threading.Event):
    """Stops the worker after some turns, and publishes in between; nothing really waits."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Called by the worker between two rounds."""
        assert timeout is not None
        self.pauses.append(timeout)
        if len(self.pauses) == IDLE:
            publish(self._connection, TOPIC, b"x")
        if len(self.pauses) == IDLE + AFTER:
            self.set()
        return self.is_set()


class Unwoken(SequencerWorker):
    """Rests, and hears no publisher."""

    def rest(
        self, stop: threading.Event, commit_listener: CommitListener | None, seconds: float
    ) -> None:
        """The rest of the engines that cannot notify."""
        super().rest(stop, None, seconds)


def test_an_idle_sequencer_rests_longer_each_time_up_to_a_setting(
    log: Connection, database_url: str
) -> None:
    """Guard: the pause doubles while a round finds nothing, and begins anew when one does.

    After a round that found something it is as short as the pass was; after the first that found
    nothing it is the shortest of an idle one, because a busy log has such rounds.
    """
    database.call(log, "set_setting", name="sequencer_idle_seconds", value=LONGEST)
    turns = Turns(log)
    worker = Unwoken(database_url)
    worker.run(turns)
    doubled = [min(BUSY_PAUSE * 2**n, LONGEST) for n in range(IDLE)]
    busy = turns.pauses.pop(IDLE)
    assert 0 < busy <= BUSY_PAUSE
    assert turns.pauses == [*doubled, *doubled[: AFTER - 1]]
    assert worker.events == 1
    assert database.call(log, "unsequenced")[0][0] == 0

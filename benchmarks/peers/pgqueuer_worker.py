"""pgqueuer on asyncpg, its fastest driver, in a separate process.

python -m benchmarks.peers.pgqueuer_worker URL
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from datetime import timedelta
from time import perf_counter
from typing import Any

from benchmarks.peers.protocol import BATCH_SIZE, PAYLOAD, serve

# Imported by name, because only the peers' environment has them.
asyncpg: Any = importlib.import_module("asyncpg")
pgqueuer: Any = importlib.import_module("pgqueuer")
types: Any = importlib.import_module("pgqueuer.types")

ENTRYPOINT = "work"


class Peer:
    """A connection, and the work that the run asks for."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        self._runner = runner
        self._connection = runner.run(asyncpg.connect(url))
        self._queries = pgqueuer.Queries(pgqueuer.AsyncpgDriver(self._connection))
        runner.run(self._queries.install())

    def single(self, rows: int) -> float:
        """A commit for each job."""
        return self._runner.run(self._single(rows))

    def batch(self, rows: int) -> float:
        """A commit for each 500 jobs."""
        return self._runner.run(self._batch(rows))

    def work(self, rows: int) -> float:
        """Run pgqueuer's own worker, 500 at a time, until nothing is left."""
        return self._runner.run(self._work(rows))

    async def _single(self, rows: int) -> float:
        await self._queries.clear_queue()
        begun = perf_counter()
        for _ in range(rows):
            await self._queries.enqueue(ENTRYPOINT, PAYLOAD)
        return perf_counter() - begun

    async def _batch(self, rows: int) -> float:
        await self._queries.clear_queue()
        begun = perf_counter()
        await self._fill(rows)
        return perf_counter() - begun

    async def _fill(self, rows: int) -> None:
        for start in range(0, rows, BATCH_SIZE):
            count = min(BATCH_SIZE, rows - start)
            await self._queries.enqueue([ENTRYPOINT] * count, [PAYLOAD] * count, [0] * count)

    async def _work(self, rows: int) -> float:
        await self._queries.clear_queue()
        await self._fill(rows)
        await self._connection.execute("VACUUM ANALYZE")
        done = 0
        # A manager can run only once.
        manager = pgqueuer.QueueManager(pgqueuer.Queries(pgqueuer.AsyncpgDriver(self._connection)))

        async def handle(job: Any) -> None:
            nonlocal done
            done += 1

        manager.entrypoint(ENTRYPOINT, accepts_context=False)(handle)
        begun = perf_counter()
        await manager.run(
            batch_size=BATCH_SIZE,
            mode=types.QueueExecutionMode.drain,
            dequeue_timeout=timedelta(seconds=1),
        )
        spent = perf_counter() - begun
        if done != rows:
            raise RuntimeError(f"worked on {done} of {rows} jobs")
        return spent


def main() -> None:
    """Serve until the input ends."""
    with asyncio.Runner() as runner:
        peer = Peer(runner, sys.argv[1])
        serve({"single": peer.single, "batch": peer.batch, "work": peer.work})


if __name__ == "__main__":
    main()

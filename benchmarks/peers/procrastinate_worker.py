"""procrastinate in a separate process.  Jobs are deferred without asyncio, which is faster.

python -m benchmarks.peers.procrastinate_worker URL
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from time import perf_counter
from typing import Any

from benchmarks.peers.protocol import BATCH_SIZE, PAYLOAD, serve

# Imported by name, because only the peers' environment has it.
procrastinate: Any = importlib.import_module("procrastinate")

# It warns of an application in the main module, because a worker's command cannot import one.
logging.disable(logging.WARNING)

TASK = "work"
CONCURRENCY = 10
ARGUMENTS = {"payload": PAYLOAD.decode()}


class Peer:
    """Two applications of procrastinate: one defers jobs, the other one's worker runs them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._app = procrastinate.App(
            connector=procrastinate.SyncPsycopgConnector(conninfo=url, min_size=1, max_size=1)
        )
        self._app.open()
        self._app.schema_manager.apply_schema()
        self._task = self._app.task(name=TASK)(lambda payload: None)
        self._app.connector.execute_query("TRUNCATE procrastinate_jobs CASCADE")

    def close(self) -> None:
        """Give the connections back."""
        self._app.close()

    def single(self, rows: int) -> float:
        """A commit for each job."""
        self._empty()
        begun = perf_counter()
        for _ in range(rows):
            self._task.defer(**ARGUMENTS)
        return perf_counter() - begun

    def batch(self, rows: int) -> float:
        """A commit for each 500 jobs."""
        self._empty()
        begun = perf_counter()
        self._fill(rows)
        return perf_counter() - begun

    def work(self, rows: int) -> float:
        """Run procrastinate's own worker until nothing is left."""
        self._empty()
        self._fill(rows)
        return asyncio.run(self._work(rows))

    def _fill(self, rows: int) -> None:
        for start in range(0, rows, BATCH_SIZE):
            self._task.batch_defer(*[ARGUMENTS] * min(BATCH_SIZE, rows - start))

    def _empty(self) -> None:
        self._app.connector.execute_query("TRUNCATE procrastinate_jobs CASCADE")

    async def _work(self, rows: int) -> float:
        done = 0
        app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(
                conninfo=self._url, min_size=1, max_size=CONCURRENCY + 2
            )
        )

        async def handle(payload: str) -> None:
            nonlocal done
            done += 1

        app.task(name=TASK)(handle)
        async with app.open_async():
            begun = perf_counter()
            await app.run_worker_async(
                wait=False,
                concurrency=CONCURRENCY,
                listen_notify=False,
                delete_jobs="always",
                install_signal_handlers=False,
            )
            spent = perf_counter() - begun
        if done != rows:
            raise RuntimeError(f"worked on {done} of {rows} jobs")
        return spent


def main() -> None:
    """Serve until the input ends."""
    peer = Peer(sys.argv[1])
    try:
        serve({"single": peer.single, "batch": peer.batch, "work": peer.work})
    finally:
        peer.close()


if __name__ == "__main__":
    main()

"""Celery with its SQS transport: a worker is killed, and the database; no task is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from tests import servers
from tests.consumers.process import until
from tests.faults.gateway.attack import attacked, gateway_url
from tests.faults.servers import crashing_server
from tests.faults.world import SEED
from tests.gateway import sdks
from tests.kit.proof import proves
from tests.support import missing
from tools import clients

TASKS = 1_000
FOLDER = Path(sdks.__file__).parent
WORKER = (
    *(sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--concurrency", "2"),
    *("--loglevel", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"),
)


@contextmanager
def worker(environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of Celery with its processes, killed at the end if it is still there."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            WORKER, cwd=FOLDER, env=environment, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a worker and to those that it has made."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@proves("SQS clients")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", servers.DATABASES)
def test_no_task_of_celery_is_lost(engine: str, tmp_path: Path) -> None:
    if engine not in servers.chosen():
        pytest.skip(f"this run is about {', '.join(servers.chosen())}")
    try:
        environment = clients.CELERY.environment()
    except PenstockError as error:
        missing("Celery", error)
    journal = tmp_path / "journal"
    journal.touch()
    with (
        crashing_server(engine, tmp_path / "server") as server,
        attacked(
            server, gateway_url(server), tmp_path / "gateways", SEED, has_clients=False
        ) as attack,
    ):
        key = attack.clients.key
        environment |= {
            "BROKER": f"sqs://{key.key_id}:{key.secret}@127.0.0.1:{attack.front.port}",
            "JOURNAL": str(journal),
        }
        send = [sys.executable, "celery_tasks.py", "send", str(TASKS)]
        subprocess.run(send, cwd=FOLDER, env=environment, check=True, timeout=120)

        def done() -> Counter[int]:
            return Counter(map(int, journal.read_text().split()))

        with (
            worker(environment, tmp_path / "one") as one,
            worker(environment, tmp_path / "two") as two,
        ):
            until(lambda: len(done()) > TASKS // 5, "some tasks are done", 120)
            kill(one)
            until(lambda: len(done()) > 2 * TASKS // 5, "the other one goes on", 120)
            server.crash()
            server.restart()
            until(lambda: len(done()) == TASKS, "all tasks are done", 180)
            assert two.poll() is None, "it lives on"
    assert done().keys() == set(range(TASKS))
    # Twice is what was in hand when its worker was killed, or when the database was away.
    assert sum(done().values()) < TASKS + 100

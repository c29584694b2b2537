"""A program that forks while another of its threads uses Penstock for the first time."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

import penstock
from penstock.publishing.event_ids import Identifiers
from tests.contract.databases import ContractDatabase
from tests.kit.log import drain, topic

pytestmark = pytest.mark.mariadb_differs("the driver after a fork")

#: A thread stands in the middle of an import, or has ended, when the program forks.
FORKING = """
import importlib.util, os, signal, sys, threading
import penstock

if sys.argv[1] == "preload":
    penstock.preload()
importing, go_on = threading.Event(), threading.Event()


class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "penstock.publishing.publish":
            return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        importing.set()
        go_on.wait(60)
        module.publish = None


sys.meta_path.insert(0, Slow())
first_use = threading.Thread(target=lambda: penstock.publish)
first_use.start()
while first_use.is_alive() and not importing.wait(0.01):
    pass
child = os.fork()
if not child:
    signal.alarm(int(sys.argv[2]))
    sys.meta_path.pop(0)
    publish = penstock.publish
    if sys.argv[3:]:
        with penstock.connect(sys.argv[3]) as connection:
            publish(connection, "shop/orders", b"from the child")
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
go_on.set()
first_use.join()
print(status)
"""

#: Everything that a running application calls.
CALLING = """
import sys
import penstock

penstock.preload()
before = set(sys.modules)
url = sys.argv[1]
with penstock.connect(url) as connection:
    with connection.transaction():
        penstock.publish(connection, "shop/orders", b"1")
        penstock.publish_batch(connection, [penstock.Message("shop/orders", b"2", key="k")])
    penstock.subscribe(connection, "billing", ["shop/orders"])
    penstock.queue.subscribe(connection, "mails", ["shop/orders"])
    penstock.sequence(connection)
penstock.Consumer(url, "billing", handler=str).run_until_idle()
penstock.QueueConsumer(url, "mails", handler=lambda event: None).run_until_idle()
print(sorted(set(sys.modules) - before))
"""


def said(program: str, *given: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *given],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout.strip()


def test_after_preload_a_child_publishes(db: ContractDatabase) -> None:
    connection = db.connect()
    topic(connection, 1, "shop/orders")
    assert said(FORKING, "preload", "30", db.url) == "0"
    drain(connection)
    (event,) = penstock.fetch(connection, "shop/orders", 0, 1)
    assert event.payload == b"from the child"


def test_without_it_the_child_waits_for_an_import_for_ever() -> None:
    """Guard of the test before.  The alarm ends the child."""
    assert said(FORKING, "nothing", "1") == str(-signal.SIGALRM)


def test_after_preload_nothing_is_imported_any_more(db: ContractDatabase) -> None:
    topic(db.connect(), 1, "shop/orders")
    assert said(CALLING, db.url) == "[]"


@pytest.mark.parametrize("with_guard", [True, False])
def test_a_child_makes_event_ids_though_a_thread_was_making_one(with_guard: bool) -> None:
    """Guard: `after_fork`, which the module registers."""
    identifiers = Identifiers()
    locked = identifiers._lock
    locked.acquire()
    if with_guard:
        identifiers.after_fork()
    made = threading.Thread(target=identifiers.make, args=(1,), daemon=True)
    made.start()
    made.join(20 if with_guard else 0.05)
    assert made.is_alive() is not with_guard
    locked.release()
    made.join(20)


def test_a_fork_makes_the_locks_of_the_process_anew() -> None:
    """Of event ids, and of the heartbeats of its consumers."""
    program = """
import os
from penstock.leases import heartbeat
from penstock.publishing.event_ids import _identifiers

before = _identifiers._lock, heartbeat._by_database_lock
child = os.fork()
if not child:
    os._exit(_identifiers._lock is before[0] or heartbeat._by_database_lock is before[1])
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert said(program) == "0"

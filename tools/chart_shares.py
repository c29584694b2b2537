"""A chart of who holds how many partitions while consumers come, go and are killed.

`python -m tools.chart_shares` starts an embedded PostgreSQL and each consumer in a process of its
own, looks at the leases ten times a second, and writes docs/images/shares.svg.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock import database, log, subscriptions
from penstock.database.migrate import migrate
from penstock.leases.database_keeper import LeaseKeeper
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from penstock.topics import names
from resources.embedded import EmbeddedPostgres

TOPIC, SUBSCRIPTION, PARTITIONS = "chart/shares", "shares", 64
HEARTBEAT, LEASE = 0.5, 1.5
#: What happens when, in seconds: who joins, leaves (SIGTERM) or is killed (SIGKILL).
SCRIPT = (
    (0, "join", "A"), (3, "join", "B"), (6, "join", "C"), (9, "join", "D"), (12, "join", "E"),
    (15, "leave", "B"), (18, "kill", "D"), (22, "join", "F"), (25, "kill", "A"), (29, "end", ""),
)  # fmt: skip
_WORDS = {"join": "joins", "leave": "leaves", "kill": "killed"}
PAUSE = 0.1
DEFAULT_OUTPUT = Path(__file__).resolve().parents[1] / "docs" / "images" / "shares.svg"

#: For each time that the leases are read: the second, and how many partitions each consumer held.
Looks = list[tuple[float, Counter[str]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.hold:
        hold(options.url, options.hold)
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="penstock-chart-") as folder,
        EmbeddedPostgres(Path(folder)) as server,
    ):
        url = server.url("chart")
        _prepare(url)
        looks = watch(url, SCRIPT)
    draw(looks, SCRIPT, options.output)
    print(f"wrote {options.output}")
    return 0


def hold(url: str, consumer: str) -> None:
    """Run a consumer that holds leases, gives them back when asked, and reads nothing."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with (
        LeaseKeeper(url, SUBSCRIPTION, consumer=consumer) as keeper,
        database.connect(url) as connection,
    ):
        while not stop.wait(PAUSE / 2):
            asked = [lease for lease in keeper.leases() if lease.state == "RELEASING"]
            if asked:
                stream.release(connection, keeper.member, asked)
                for lease in asked:
                    keeper.lost(lease)


def watch(url: str, script: Sequence[tuple[float, str, str]]) -> Looks:
    """Play the script, and read the leases meanwhile."""
    looks: Looks = []
    with _consumers(url) as running, database.connect(url) as connection:
        begun = time.monotonic()
        for at, what, who in script:
            while (now := time.monotonic() - begun) < at:
                held = (lag.holder for lag in subscriptions.lag(connection, SUBSCRIPTION))
                looks.append((now, Counter(holder for holder in held if holder)))
                time.sleep(PAUSE)
            if what == "join":
                running[who] = subprocess.Popen(
                    [sys.executable, "-m", __spec__.name, "--hold", who, "--url", url]
                )
            elif what in {"leave", "kill"}:
                running[who].send_signal(signal.SIGTERM if what == "leave" else signal.SIGKILL)
    return looks


def draw(looks: Looks, script: Sequence[tuple[float, str, str]], output: Path) -> None:
    """The chart, as SVG."""
    from matplotlib.figure import Figure

    consumers = sorted({name for _, held in looks for name in held})
    seconds = [at for at, _ in looks]
    shares = [[held[name] for _, held in looks] for name in consumers]
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    axes.stackplot(seconds, shares, labels=consumers, step="post", alpha=0.8)
    for at, what, who in script[:-1]:
        axes.axvline(at, color="black", linewidth=0.6, linestyle=":")
        axes.text(at, PARTITIONS * 1.02, f" {who} {_WORDS[what]}", fontsize=8)
    axes.set(xlabel="seconds", ylabel="partitions held", xlim=(0, script[-1][0]))
    axes.set_ylim(0, PARTITIONS * 1.1)
    axes.legend(loc="lower right", ncols=len(consumers))
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, metadata={"Date": None})


def _prepare(url: str) -> None:
    """Make a topic in which every partition has something to read, so that all stay active."""
    migrate(url)
    with database.connect(url) as connection:
        names.create_topic(connection, TOPIC, PARTITIONS, create_namespaces=True)
        stream.subscribe(connection, SUBSCRIPTION, [TOPIC])
        stream.configure_subscription(
            connection, SUBSCRIPTION, heartbeat_seconds=HEARTBEAT, lease_seconds=LEASE
        )
        publish_batch(connection, [Message(TOPIC, b"x", partition=n) for n in range(PARTITIONS)])
        log.sequence(connection)


@contextmanager
def _consumers(url: str) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        yield running
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait(30)


if __name__ == "__main__":
    sys.exit(main())

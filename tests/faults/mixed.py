"""Everything at once: processes of each kind, and faults drawn by a seed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from contextlib import closing

from penstock import database
from penstock.subscriptions import stream
from tests.faults.poison import EXIT
from tests.faults.servers import Crashing
from tests.faults.world import TOPIC, World

PUBLISHERS = frozenset({"publisher", "crowd", "odd"})
CONSUMERS = frozenset({"consumer", "raw"})
#: Whose transactions commit effects, by what their names begin with.
COMMITTING = ("exact", "raw", "jobs", "keyed", "late")


class Mixed:
    """Two publishers, a sequencer, three consumers of each kind, and faults drawn by a seed."""

    def __init__(self, world: World, server: Crashing, seed: int) -> None:
        self.world = world
        self.server = server
        self.seed = seed
        self.chance = random.Random(seed)
        #: An option of publishers and the sequencer: a short run is as long as its faults take, and
        #: at full speed it keeps all processors busy meanwhile.
        self.pace: tuple[str, ...] = ()
        self.faults: dict[str, Callable[[], None]] = {
            "kill": self.kill,
            "failpoint": self.failpoint,
            "terminate": self.terminate,
            "pause": self.pause,
            "pause in the transaction": self.pause_in_transaction,
            "cut": self.cut,
            "commit unknown": self.commit_unknown,
            "one way": self.one_way,
            "slow": self.slow,
            "seek": self.seek,
            "crash": self.crash,
        }

    def begin(self, consumers: int = 2, poison: tuple[str, ...] = ("raise", "exit")) -> None:
        """Start everybody and wait until all are at work."""
        world = self.world
        world.set_up()
        world.tend = world.revive
        self.start(consumers, poison)
        world.until(lambda: world.records("handle"), "the first event is handled")
        world.until(lambda: world.records("commit", sub="exact"), "the first effect is committed")

    def start(self, consumers: int, poison: tuple[str, ...]) -> None:
        """The processes."""
        world = self.world
        world.start("sequencer", "s1", *self.pace)
        for number in range(2):
            more = [f"--poison={each}" for each in poison]
            drawn = ["--seed", str(self.chance.random())[2:9], *self.pace]
            world.start("publisher", f"p{number}", *drawn, *more)
        for number in range(consumers):
            for subscription in ("exact", "least"):
                options = [f"--skew={3600 * (-1) ** number}"]  # F19: nothing may depend on it
                if number % 2:  # the others handle in the loop's own thread
                    options.append("--handler-seconds=60")
                self.consumer(subscription, f"{subscription}{number}", *options)

    def consumer(self, subscription: str, name: str, *options: str) -> None:
        """A consumer process."""
        self.world.start("consumer", name, "--subscription", subscription, *options)

    def play(self, faults: list[str]) -> None:
        """These faults, each with work before and after it."""
        for each in faults:
            self.progress()
            self.faults[each]()

    def progress(self, commits: int = 3) -> None:
        """Until positions have moved a few more times: a fault is to meet work."""
        before = self.moves()
        self.world.until(lambda: self.moves() >= before + commits, "work goes on")

    def moves(self) -> int:
        """How many commits succeeded."""
        return len(self.world.records("commit"))

    def someone(self) -> str:
        """A consumer that runs."""
        return self._chosen(CONSUMERS)

    def anyone(self) -> str:
        """Any process."""
        return self._chosen({each.role for each in self.world.running.values()})

    def _chosen(self, roles: Collection[str]) -> str:
        running = self.world.running.values()
        name = self.chance.choice(sorted(each.name for each in running if each.role in roles))
        self.world.until(lambda: self.world.has_begun(name), f"{name} has started")
        return name

    def kill(self) -> None:
        """F1, and the same for publishers and the sequencer."""
        name = self.anyone()
        each = self.world.running[name]
        self.world.kill(name)
        self.world.start(each.role, name, *each.options)

    def failpoint(self) -> None:
        """F1 at a place: before or after the handler or the commit."""
        subscription = self.chance.choice(["exact", "least"])
        place = self.chance.choice(
            ["handle.before", "handle.after", "commit.before", "commit.after"]
        )
        self.doomed(subscription, place)

    def doomed(self, subscription: str, place: str) -> None:
        """A consumer that is killed when it comes to a place for the second time."""
        name = f"doomed{len(self.world.ended)}"
        self.consumer(subscription, name, "--immune", "--failpoint", f"{place}=kill@2")
        self.world.note(f"kill at {place}", name)
        process = self.world.running[name].process
        self.world.until(lambda: process.poll() is not None, f"{name} ends")
        assert self.world.has_ended(name) == -9

    def terminate(self) -> None:
        """F2."""
        name = self.someone()
        each = self.world.running[name]
        self.world.note("terminate", name)
        # It works off what it has in hand, and poison may be among it.
        assert self.world.terminate(name) in {0, EXIT}
        self.world.start(each.role, name, *each.options)

    def pause(self) -> None:
        """F3, anywhere."""
        name = self.someone()
        self.world.stop(name)
        self.taken_over_from(name)
        self.world.go_on(name)

    def pause_in_transaction(self) -> None:
        """F3 between a commit call and its COMMIT."""
        self.zombie("exact")

    def zombie(self, subscription: str, place: str = "commit.before") -> None:
        """A consumer that stops itself at a place, and goes on when it was replaced."""
        name = f"zombie{len(self.world.ended)}"
        self.consumer(subscription, name, "--immune", "--failpoint", f"{place}=stop@2")
        process = self.world.running[name]
        self.world.until(process.is_stopped, f"{name} stops itself")
        self.world.note(f"stop at {place}", name)
        self.taken_over_from(name)
        self.world.go_on(name)
        self.woken(name)
        self.progress()
        assert self.world.terminate(name) == 0

    def woken(self, name: str) -> None:
        """What is expected of a zombie that goes on."""

    def taken_over_from(self, name: str) -> None:
        """Until nothing is its own any more, or poison has ended it."""
        process = self.world.running[name].process
        query = (
            "SELECT COUNT(*) FROM penstock.leases WHERE holder = %(name)s OR holder LIKE %(runs)s"
        )
        with closing(self.world.connect()) as own:
            self.world.until(
                lambda: (
                    process.poll() is not None
                    or database.execute(own, query, {"name": name, "runs": f"{name}.%"}) == [(0,)]
                ),
                f"{name} is replaced",
            )

    def wait(self, seconds: float) -> None:
        """While others work."""
        end = time.monotonic() + seconds
        self.world.until(lambda: time.monotonic() > end, "time passes")

    def cut(self) -> None:
        """F8: all connections of a process end at a random moment."""
        name = self.anyone()
        self.world.note("cut", name)
        self.world.proxies.cut(self.world.running[name].proxy)

    def commit_unknown(self) -> None:
        """F9: a COMMIT is sent and its answer is lost, or it is lost itself."""
        how = self.chance.choice(["after", "before"])
        running = self.world.running.values()
        names = [n.name for n in running if n.role in PUBLISHERS or n.name.startswith(COMMITTING)]
        chosen = self.world.running[self.chance.choice(sorted(names))]
        self.world.note(f"commit cut {how}", chosen.name)
        chosen.proxy.cut_commit = how
        self.world.until(
            lambda: not chosen.proxy.cut_commit or chosen.process.poll() is not None,
            f"a COMMIT of {chosen.name} is cut",
        )

    def one_way(self) -> None:
        """F20: nothing comes back from the database, until somebody else has taken over."""
        name = self.someone()
        proxy = self.world.running[name].proxy
        self.world.note("one way", name)
        proxy.frozen_to_client = b""
        self.taken_over_from(name)
        proxy.frozen_to_client = None

    def slow(self) -> None:
        """F21: 50 ms more each way, for everybody, over a few commits."""
        self.world.note("slow")
        for each in self.world.proxies.made:
            each.delay = 0.05
        self.progress()
        for each in self.world.proxies.made:
            each.delay = 0.0

    def seek(self) -> None:
        """F24: back by some events, of the subscription that counts its effects."""
        with closing(self.world.connect()) as own:
            partition = self.chance.randrange(self.world.partitions)
            at = stream.position(own, "exact", TOPIC)[partition]
            self.world.seek(own, "exact", partition, max(1, at - self.chance.randint(0, 20)))

    def crash(self) -> None:
        """F6."""
        self.world.note("crash")
        self.server.crash()
        self.world.recorder.write("down", "ok")
        self.server.restart()
        self.world.url = self.server.url

    def end(self) -> None:
        """Publishers stop, everything is drained, all leave in order (L6, L8)."""
        for name in [n.name for n in self.world.running.values() if n.role in PUBLISHERS]:
            assert self.world.terminate(name) == 0
        self.world.drain()
        self.world.tend = None
        for name in list(self.world.running):
            assert self.world.terminate(name) == 0, name

"""Where the copies of a log epoch belong: rendezvous hashing over named targets with weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.records import LogEpoch

#: How long one copy may take, from the start of its lot to its record.
COPY_SECONDS = 600
MAX_WEIGHT = 1_000
#: So many bits of a hash fill the mantissa of a float.
_BITS = 53


@dataclass(frozen=True, slots=True)
class Placement:
    """On how many of which targets a topic's log epochs lie.  An impossible one is refused.

    ``targets`` are weights by name.  A log epoch counts as acknowledged when ``ack_quorum`` of its
    ``copies`` are verified.
    """

    targets: Mapping[str, int]
    copies: int
    ack_quorum: int
    copy_seconds: float = COPY_SECONDS

    def __post_init__(self) -> None:
        """ConfigurationError unless it can be kept; the targets are copied."""
        object.__setattr__(self, "targets", dict(self.targets))
        if not self.targets:
            raise ConfigurationError("no target is named", hint="name one or more targets")
        for name, weight in self.targets.items():
            if not 1 <= weight <= MAX_WEIGHT:
                raise ConfigurationError(
                    f"the weight of the target {name} is {weight}",
                    hint=f"write a whole number from 1 to {MAX_WEIGHT}",
                )
        if not 1 <= self.copies <= len(self.targets):
            raise ConfigurationError(
                f"{self.copies} copies cannot lie on {len(self.targets)} targets",
                hint="ask for 1 copy or more, and at most one on each target",
            )
        if not 1 <= self.ack_quorum <= self.copies:
            raise ConfigurationError(
                f"an ack_quorum of {self.ack_quorum} cannot be reached with {self.copies} copies",
                hint="ask for 1 or more, and at most as many as there are copies",
            )
        if not 0 < self.copy_seconds < math.inf:
            raise ConfigurationError(
                f"a copy_timeout of {self.copy_seconds} s", hint="write a duration like 10m"
            )

    def order(self, known_as: str, partition: int, log_epoch: int) -> tuple[str, ...]:
        """All targets, the best for this log epoch first; its homes are the first ``copies``.

        Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit
        rates", 1998) with weights by the logarithmic method (Schindelhauer and Schomaker, "Weighted
        distributed hash tables", SPAA 2005): with a hash h in (0, 1), the highest of
        ``-weight / ln(h)`` wins with a probability that is proportional to the weight.  The score
        of a target depends on no other target.  So one that comes takes its own share from the
        others, and one that goes leaves its share to them; nothing else moves.
        """
        of = f"{known_as}\0{partition}\0{log_epoch}"
        scores = {
            name: -weight / math.log(_hash(of, name)) for name, weight in self.targets.items()
        }
        return tuple(sorted(scores, key=lambda name: (-scores[name], name)))

    def held(self, epoch: LogEpoch) -> tuple[str, ...]:
        """The targets of this placement that hold a verified copy, homes or not: they count."""
        return tuple(name for name in self._order_of(epoch) if name in epoch.targets)

    def lacking(self, epoch: LogEpoch) -> tuple[str, ...]:
        """The targets that should get a copy now: its homes first; none when there are enough."""
        free = [name for name in self._order_of(epoch) if name not in epoch.targets]
        return tuple(free[: max(0, self.copies - len(self.held(epoch)))])

    def _order_of(self, epoch: LogEpoch) -> tuple[str, ...]:
        return self.order(epoch.known_as, epoch.partition, epoch.log_epoch)


def _hash(of: str, target: str) -> float:
    """A number between 0 and 1, neither of them, that is the same on every machine."""
    digest = hashlib.sha256(f"{of}\0{target}".encode()).digest()
    return (float(int.from_bytes(digest[:8]) >> (64 - _BITS)) + 0.5) / 2.0**_BITS


def verified_on(epochs: Iterable[LogEpoch], placement: Placement | None) -> list[LogEpoch]:
    """Those of the log epochs that have as many verified copies as their policy asks for."""
    if placement is None:
        return []
    wanted = placement.targets.keys()
    return [each for each in epochs if len(wanted & set(each.targets)) >= placement.copies]

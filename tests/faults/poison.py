"""Events that handlers cannot take, as their payload says behind their name."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from penstock.records import Event

#: It fails each time, in every worker of a queue.
DEADLY = "dead"
#: The exit code of a process that poison ends.
EXIT = 9


class PoisonError(Exception):
    """What the handler of a poison event raises."""


class Poison:
    """Acts in a handler.  Except for the deadly one, it acts once for each subscription."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given

    def act(self, event: Event) -> None:
        """What the handler of this event comes to."""
        if self._given.seconds:
            time.sleep(self._given.seconds)
        name, _, poison = bytes(event.payload).decode().partition(" ")
        if poison == DEADLY:
            raise PoisonError(name)
        if not poison or self._given.immune:
            return
        if not self._given.always and not self._first_time(name):
            return
        if poison == "exit":
            os._exit(EXIT)
        if poison == "garbage":
            json.loads(event.payload)
        if poison == "hang":
            time.sleep(3 * float(os.environ.get("PENSTOCK_TEST_LEASE", "1")))
        else:
            raise PoisonError(name)

    def _first_time(self, label: str) -> bool:
        name = f"poison.{self._given.subscription}.{label.replace('/', '.')}"
        try:
            (Path(self._given.history) / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

"""Python's collector of garbage, which is held off while a command of its own process is loaded.

What was imported is no garbage, and to look through it took a third of a short command's time.
"""

from __future__ import annotations

import gc

_is_held_off = False


def hold_off() -> None:
    """No garbage is looked for until `let_go`.  A collector that is off already stays off."""
    global _is_held_off
    _is_held_off = gc.isenabled()
    if _is_held_off:
        gc.disable()


def let_go() -> None:
    """What is there now stays to the end.  A collector that was not held off is left alone."""
    global _is_held_off
    if _is_held_off:
        _is_held_off = False
        gc.freeze()
        gc.enable()

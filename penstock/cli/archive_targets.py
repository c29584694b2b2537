"""The option ``--target``: where the archive is."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, cast

import typer

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.archive.targets import Target

#: Who knows targets by name: in a checkout the policy file.  A function of a name that returns the
#: target; of None it returns all targets.
GROUP = "penstock.targets"

ArchiveTargets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        help="Where the archive is: NAME=DIRECTORY, or a NAME of the policy file; repeat. "
        "Else all those of the policy file.",
    ),
]


def archive_targets(given: list[str] | None) -> list[Target]:
    """The targets that the option names, in its order; without it those that are known."""
    if given:
        return [_target(each) for each in given]
    known = _known()
    return known(None) if known is not None else []


def _target(text: str) -> Target:
    from penstock.archive.targets import Target

    name, is_given, uri = text.partition("=")
    if is_given and uri:
        return Target(name, uri)
    known = None if is_given else _known()
    if known is None:
        raise ConfigurationError(
            f"the target {text!r} is not NAME=DIRECTORY",
            hint="only a checkout of Penstock has a policy file that knows names",
        )
    (target,) = known(name)
    return target


def _known() -> Callable[[str | None], list[Target]] | None:
    for entry in entry_points(group=GROUP):
        try:
            return cast("Callable[[str | None], list[Target]]", entry.load())
        except ModuleNotFoundError:  # the wheel alone, without the platform
            return None
    return None

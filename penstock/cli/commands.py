"""The sub-commands: those of the wheel, and those that a checkout adds.

The texts of ``penstock --help`` are here, so that the page loads neither a sub-command nor Typer.
A test compares them with the text of each sub-command.  The platform's commands are in the
packages that they command (``ops``, ``consumers``).  The entry-point group ``penstock.commands``
registers them.  Where the platform is not installed, the page names them in one line, and a call
says what is missing.
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError

GROUP = "penstock.commands"

#: The packages that are run from a checkout, and are not in the wheel.
PLATFORM = frozenset({"ops", "consumers", "resources", "dagster_project"})

#: Where each command of the wheel is, and what it does.
OWN = {
    "migrate": ("migrations:migrate", "Install the schema, or bring it up to date."),
    "namespace": (
        "namespaces:app",
        "Create, rename, move, delete and list namespaces.",
    ),
    "topic": (
        "topics:app",
        "Create, rename, move, resize, delete, list and describe topics.",
    ),
    "subscription": (
        "subscriptions:app",
        "Create, list, describe, move, pause and delete subscriptions.",
    ),
    "queue": (
        "queues:app",
        "Create, list, describe, count, look into, purge and redrive queues.",
    ),
    "dead-letter": (
        "dead_letters:app",
        "Events that a subscription has given up: look at them, hand them out again, drop them.",
    ),
    "hold": (
        "holds:app",
        "Keep events from retention until a legal hold is released.",
    ),
    "bookmark": (
        "bookmarks:app",
        "Name positions of a topic, to begin there later: --to bookmark:NAME.",
    ),
    "inbox": (
        "inbox:app",
        "The table by which an application's own database knows what was handled.",
    ),
    "schema": (
        "schemas:app",
        "Schemas of payloads: which one a type of event has, and what the next one has to keep.",
    ),
    "rights": (
        "rights:app",
        "Say who may do what, and where.",
    ),
    "account": (
        "accounts:app",
        "The tenants of a gateway: accounts, their keys and their rights.",
    ),
    "publish": (
        "events:publish",
        "Publish one event, in a transaction of its own; writes its event id.",
    ),
    "fetch": (
        "events:fetch",
        (
            "Read events by sequence, up to the high watermark;"
            " of several partitions the oldest first."
        ),
    ),
    "tail": (
        "events:tail",
        "Write a topic's events, a line for each, partition by partition; keeps no position.",
    ),
    "export": (
        "exporting:export",
        "Write all events of a topic into files: JSON Lines or Parquet.",
    ),
    "import": (
        "importing:app",
        "Bring what another outbox or queue has not delivered into the log.",
    ),
    "uninstall": (
        "uninstalling:uninstall",
        "Say what of Penstock is in the database, or drop all of it with --yes SCHEMA.",
    ),
    "cloudevents": (
        "cloudevents:check",
        "Read CloudEvents strictly: one that is none is refused, and its attribute named.",
    ),
    "asyncapi": (
        "asyncapi:of_database",
        "Write an account's topics as an AsyncAPI 3.0 document: where each is heard and published.",
    ),
    "consume": (
        "consume:consume",
        "Join a subscription and write the events of the partitions that it is handed.",
    ),
    "work": (
        "work:work",
        "Receive the events of a queue and run a command for each, until SIGTERM.",
    ),
    "status": (
        "status:status",
        "Show the state of the schema, the topics, the subscriptions and their consumers.",
    ),
    "doctor": (
        "doctor:doctor",
        (
            "Say what is wrong, a line for each with the command that mends it."
            " Exit code 1: a finding."
        ),
    ),
    "worker": (
        "worker:worker",
        "Run the consumers of an application until SIGTERM.",
    ),
    "upkeep": (
        "upkeep:upkeep",
        "Sequence events, keep storage ahead and sweep until SIGTERM: each installation needs one.",
    ),
    "sequence": (
        "upkeep:sequence",
        "Give committed events their sequences, once; `penstock upkeep` does it all the time.",
    ),
    "sweep": (
        "upkeep:sweep",
        "Free the leases of consumers that died, and drop what was kept for long enough, once.",
    ),
    "restore": (
        "restore:app",
        "See what a restore of the database lost, and go on after it.",
    ),
}

#: What the commands of a checkout do.
OF_THE_PLATFORM = {
    "archive": "Bring the sealed log epochs of a topic to its targets with Spark,"
    " and verify them there.",
    "audit": "Read a topic, hot and cold, and prove its order: no gap, no double."
    " Exit code 1: a fault.",
    "backfill": "Bring again what is missing: copies, dropped log epochs, a window in a sink.",
    "clean": "Read back what retention lets go, remove what is whole, and say what holds the rest.",
    "daemon": "Run consumers, queues, the sequencer, relays and the sweep until SIGTERM.",
    "erase": "Replace payload and headers of events by tombstones, in the database and in the"
    " archive.",
    "erasures": "List erasures: who, when, why, and how many events; never what was in them.",
    "duty": "Sequence or sweep many databases at once, here or on Spark.",
    "gateway": "Serve the HTTP API until SIGTERM: publish, receive and read from any language.",
    "policy": "Heartbeats, leases, statistics and retries of subscriptions, and what is kept.",
    "relay": "Send a subscription to a sink: what is there, or --forever."
    " Exit code 1: not all was sent.",
    "rollup": "Turn the many small files of closed days on a topic's targets into few large ones.",
    "seal": "Cut the end of topics' partitions into log epochs, as the policy file says.",
    "target": "The places that archives are kept in.",
    "verify": "Make every check that Dagster makes: log, consumers, copies, policies, one event end"
    " to end.",
}


def registered() -> list[EntryPoint]:
    """The commands that installed packages add.  It looks through all of them."""
    found = {each.name: each for each in entry_points(group=GROUP)}
    return [found[name] for name in sorted(found.keys() - OWN)]


@cache
def load(name: str) -> Any:
    """A command of the wheel."""
    module, _, attribute = OWN[name][0].partition(":")
    return as_command(name, getattr(import_module(f"penstock.cli.{module}"), attribute))


def as_command(name: str, found: Any) -> Any:
    """The command that a Typer application is, or a function becomes."""
    import typer

    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False)
        found.command(name=name)(function)
    found._add_completion = False  # a group of its own would offer it, and for itself alone
    command = typer.main.get_command(found)
    command.name = name
    return command


def is_here(entry: EntryPoint) -> bool:
    """Whether a registered command can run.  A command known by name is not loaded to find out."""
    if entry.name in OF_THE_PLATFORM:
        return _is_ours(entry.module)
    return not getattr(load_registered(entry), "is_missing", False)


def _is_ours(module: str) -> bool:
    """Whether a module of the platform is here.  Nothing is imported to find out.

    An index has packages of somebody else that are named as folders of the platform, `ops` for one.
    """
    package, _, inner = module.partition(".")
    path = inner.replace(".", "/")
    return any(
        (each / path).is_dir() or (each / f"{path}.py").is_file() for each in _homes(package)
    )


def _homes(package: str) -> list[Path]:
    """The folders of an installed package."""
    spec = find_spec(package)
    return [Path(each) for each in (spec and spec.submodule_search_locations) or ()]


def about(entry: EntryPoint) -> str:
    """What a registered command does, in a sentence."""
    if entry.name in OF_THE_PLATFORM:
        return OF_THE_PLATFORM[entry.name]
    return str(load_registered(entry).help or "").partition("\n\n")[0]


@lru_cache(maxsize=64)
def load_registered(entry: EntryPoint) -> Any:
    """A Typer application, or a function that becomes one command."""
    package = entry.module.partition(".")[0]
    if entry.name in OF_THE_PLATFORM and not _is_ours(entry.module):
        return _placeholder(entry.name, package)
    try:
        return as_command(entry.name, entry.load())
    except ModuleNotFoundError as error:
        return _placeholder(entry.name, (error.name or "").partition(".")[0])


def needs(package: str) -> ConfigurationError:
    """The error for a command that lacks a package."""
    if package not in PLATFORM:
        return ConfigurationError(
            f"the Python package {package} is not installed",
            hint="run `make setup` in the checkout, or take the image of the platform",
        )
    homes = _homes(package)
    if homes:
        return ConfigurationError(
            f"the package {package} in {homes[0]} is not Penstock's: the command belongs to the"
            " platform, which is not installed here",
            hint="run it in a checkout or an image of Penstock, in an environment without it",
        )
    return ConfigurationError(
        "the command belongs to the platform, which is not installed here",
        hint="run it in a checkout of Penstock, where `make setup` installs the platform, or in"
        " its image",
    )


def _placeholder(name: str, package: str) -> Any:
    import typer

    found = typer.Typer(add_completion=False)
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}

    @found.command(
        name=name, help=f"Not installed: {needs(package).hint}.", context_settings=settings
    )
    def refuse() -> None:
        raise needs(package)

    command = typer.main.get_command(found)
    command.is_missing = True  # type: ignore[attr-defined]
    return command

"""``penstock policy``: compare and apply the policy file; show, set and clear single policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.commands.installation import Database, Installation
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, say, show
from penstock.cli.transactions import own_transaction
from penstock.database import connect
from penstock.errors import InvalidArgument
from penstock.subscriptions import policies

if TYPE_CHECKING:
    from ops.policies.file import Policies

app = typer.Typer(
    help="Heartbeats, leases, statistics and retries of subscriptions, and what is kept.",
    no_args_is_help=True,
)

File = Annotated[
    Path | None, typer.Argument(help="Else PENSTOCK_POLICIES, else policies.yaml of the checkout.")
]
Kind = Annotated[str, typer.Argument(help=", ".join(policies.SETTINGS))]
Namespace = Annotated[str | None, typer.Option(help="For all that reads topics in it.")]
Topic = Annotated[str | None, typer.Option(help="For all that reads it.")]
Subscription = Annotated[str | None, typer.Option(help="For this one alone.")]


@app.command()
def diff(file: File = None, database: Database = None, output: Output = Format.table) -> None:
    """Show where the database differs from the file. Exit code 1: it does."""
    from ops.policies import policy

    here = Installation(database, file)
    wanted = here.policies
    with connect(here.url) as connection:
        found = policy.drift(connection, wanted)
        _say_awaited(connection, wanted)
    show(found, output)
    if found:
        raise typer.Exit(EXIT_NO)


TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Let the database follow this file instead of the one that it follows now: what other "
        "files have set is this one's from now on, and taken back where this one does not name it.",
    ),
]


@app.command()
def apply(
    file: File = None,
    take_over: TakeOver = False,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Bring the database in line with the file. Exit code 1: something is left.

    A file changes what it has set itself; what another file has set is shown and stays.
    """
    from ops.policies import policy

    here = Installation(database, file)
    wanted = here.policies
    with connect(here.url) as connection:
        show(policy.apply(connection, wanted, take_over=take_over), output)
        left = policy.drift(connection, wanted)
        _say_awaited(connection, wanted)
        followed = policy.other_files(connection, wanted)
    for each in left:
        by = f", set by {each.origin}" if each.origin else ""
        say(
            f"{each.subject}, {each.setting}: the file says {each.wanted}, "
            f"the database has {each.found}{by}"
        )
    if left and followed:
        say(
            f"nothing was changed: this database follows the policy file {', '.join(followed)}, "
            f"and this one is {wanted.file}; --take-over makes the database follow this one"
        )
    if left:
        raise typer.Exit(EXIT_NO)


def _say_awaited(connection: Any, wanted: Policies) -> None:
    from ops.policies.policy import awaited

    for each in awaited(connection, wanted):
        say(f"{each.scope} {each.name} does not exist yet: {each.create}")


@app.command("show")
def show_(
    namespace: Namespace = None,
    topic: Topic = None,
    subscription: Subscription = None,
    output: Output = Format.table,
) -> None:
    """Show every setting as it is in force, and where it comes from."""
    scope, name = _scope(namespace, topic, subscription)
    with connect() as connection:
        show(policies.policy_of(connection, scope=scope, name=name), output)


@app.command("list")
def list_(output: Output = Format.table) -> None:
    """Show every policy that sets something."""
    with connect() as connection:
        show(policies.list_policies(connection), output)


@app.command("set")
def set_(
    kind: Kind,
    settings: Annotated[list[str], typer.Argument(help="SETTING=VALUE; all that the policy sets.")],
    namespace: Namespace = None,
    topic: Topic = None,
    subscription: Subscription = None,
) -> None:
    """Set a policy as a whole: what it does not name is inherited."""
    scope, name = _scope(namespace, topic, subscription)
    given = dict(_setting(kind, each) for each in settings)
    with own_transaction() as connection:
        version = policies.set_policy(connection, kind, given, scope=scope, name=name)
    say(f"policy {kind}: version {version}")


@app.command()
def clear(
    kind: Kind,
    namespace: Namespace = None,
    topic: Topic = None,
    subscription: Subscription = None,
) -> None:
    """Take back all that a policy sets: it is inherited again."""
    scope, name = _scope(namespace, topic, subscription)
    with own_transaction() as connection:
        version = policies.clear_policy(connection, kind, scope=scope, name=name)
    say(f"policy {kind}: version {version}")


@app.command()
def history(
    kind: Kind,
    namespace: Namespace = None,
    topic: Topic = None,
    subscription: Subscription = None,
    output: Output = Format.table,
) -> None:
    """Show every version that a policy has had."""
    scope, name = _scope(namespace, topic, subscription)
    with connect() as connection:
        show(policies.policy_history(connection, kind, scope=scope, name=name), output)


def _scope(namespace: str | None, topic: str | None, subscription: str | None) -> tuple[str, str]:
    given = {"namespace": namespace, "topic": topic, "subscription": subscription}
    named = [(scope, name) for scope, name in given.items() if name is not None]
    if len(named) > 1:
        raise InvalidArgument(
            "the policy names more than one scope",
            hint="give one of --namespace, --topic and --subscription; none for everything",
        )
    return named[0] if named else ("global", "")


def _setting(kind: str, text: str) -> tuple[str, float | str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgument(
            f"{text!r} is not of the form SETTING=VALUE", hint="write SETTING=VALUE"
        )
    known = policies.SETTINGS.get(kind, {}).get(name)
    return name, known.read(value) if known else value

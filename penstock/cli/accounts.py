"""``penstock account``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from penstock import accounts, database
from penstock.accounts import MasterKeys
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.namespaces import done
from penstock.cli.output import Format, Output, as_dict, say, show, show_json
from penstock.cli.transactions import own_transaction
from penstock.errors import InvalidArgument

app = typer.Typer(
    help="The tenants of a gateway: accounts, their keys and their rights.", no_args_is_help=True
)
key = typer.Typer(help="Make and end keys of an account.", no_args_is_help=True)
app.add_typer(key, name="key")

Name = Annotated[str, typer.Argument(help="Of the account, and of its namespace.")]
Namespace = Annotated[str, typer.Argument(help="name/name/...")]
Verb = Annotated[
    str,
    typer.Argument(help="publish, consume, read, receive, acknowledge, peek or operate."),
]
#: What becomes of each thing when its account is deleted.
_FATE = {
    "keys": "end at once, and so does every URL that they have signed",
    "topics": "stay with their events; nobody is left who publishes to them",
    "queues": "stay with what they have not finished; nobody is left who receives",
    "streams": "stay where they are, and keep retention waiting as before",
    "leases": "end when their consumers do not renew them",
    "dead_letters": "stay until their policy removes them",
    "holds": "stay until somebody releases them",
    "copies": "stay in the archive",
}


@app.command()
def create(
    account: Name,
    *,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="LOGIN:VERB that stays in a namespace that exists."),
    ] = None,
    keep_nobody: Annotated[
        bool,
        typer.Option("--keep-nobody", help="Close a namespace that exists to all others."),
    ] = False,
    output: Output = Format.table,
) -> None:
    """Make an account and its namespace, which is closed to all others from then on."""
    kept = [_login_and_verb(each) for each in keep or []]
    given = kept if keep or keep_nobody else None
    with own_transaction() as connection:
        account_id = accounts.create_account(connection, account, keep=given)
    done(f"created account {account}", output, account=account, account_id=account_id)


def _login_and_verb(text: str) -> tuple[str, str]:
    login, found, verb = text.rpartition(":")
    if not found or not login:
        raise InvalidArgument(f"--keep {text} is not LOGIN:VERB", hint="write --keep app:publish")
    return login, verb


@app.command("list")
def list_(output: Output = Format.table) -> None:
    """List all accounts."""
    with database.connect() as connection:
        show(accounts.list_accounts(connection), output)


@app.command("show")
def show_(account: Name, output: Output = Format.table) -> None:
    """Show the keys of an account, with their last use, and what was done to it."""
    with database.connect() as connection:
        keys = [as_dict(each) for each in accounts.keys_of(connection, account)]
        audit = accounts.audit_of(connection, account)
    if output is Format.json:
        show_json({"keys": keys, "audit": audit})
        return
    columns = ("key_id", "levels", "queue", "ends_at", "revoked_at", "uses", "last_used_at")
    show([{name: each[name] for name in columns} for each in keys], output)
    say("\nwhat was done to it:")
    show(audit, output)


@app.command()
def delete(
    account: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else only say what happens.")] = False,
    output: Output = Format.table,
) -> None:
    """Say what happens to what an account has; with --yes delete the account."""
    with own_transaction() as connection:
        held = as_dict(accounts.delete_account(connection, account, confirmed=yes))
    if output is Format.json:
        show_json({"account": account, "deleted": yes, **held})
        return
    rows = [{"what": name, "count": held[name], "then": fate} for name, fate in _FATE.items()]
    show(rows, output)
    say(f"the namespace {account} stays closed: only operators reach it")
    say(f"deleted account {account}" if yes else "nothing was changed. to do it, add --yes")


@app.command()
def grant(account: Name, namespace: Namespace, verb: Verb, output: Output = Format.table) -> None:
    """Give an account a right in a namespace and below it."""
    with own_transaction() as connection:
        accounts.grant_account(connection, account, namespace, verb)
    done(f"{account}: {verb} in {namespace}", output, account=account, right=verb)


@app.command()
def revoke(
    account: Name,
    namespace: Namespace,
    verb: Verb,
    *,
    unrestrict: Annotated[
        bool,
        typer.Option("--unrestrict", help="Also take the last right: the namespace is then open."),
    ] = False,
    output: Output = Format.table,
) -> None:
    """Take a right from an account.  Exit code 1: it had none."""
    with own_transaction() as connection:
        was_there = accounts.revoke_account(
            connection, account, namespace, verb, unrestrict=unrestrict
        )
    done(f"{account}: no {verb} in {namespace}", output, account=account, revoked=was_there)
    if not was_there:
        raise typer.Exit(EXIT_NO)


@app.command()
def quota(
    account: Name,
    *,
    max_events: Annotated[
        int | None, typer.Option("--max-events", help="A second, on average over ten seconds.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", help="Of payload, a second, as the events.")
    ] = None,
    max_waiting: Annotated[
        int | None, typer.Option("--max-waiting", help="Events that its subscriptions may leave.")
    ] = None,
    max_requests: Annotated[
        int | None,
        typer.Option("--max-requests", help="Requests, polls and streams at a time, by process."),
    ] = None,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="Take the quota away.")] = False,
    output: Output = Format.table,
) -> None:
    """Show what an account may publish and has published; or set that, as a whole."""
    limits = {
        "max_events": max_events,
        "max_bytes": max_bytes,
        "max_waiting": max_waiting,
        "max_requests": max_requests,
    }
    if unlimited and any(limits.values()):
        raise InvalidArgument("--unlimited with a limit", hint="give one or the other")
    with own_transaction() as connection:
        if unlimited or any(each is not None for each in limits.values()):
            accounts.set_quota(connection, account, **limits)
        found = accounts.quota_of(connection, account)
    show([as_dict(found)] if found else [], output)


@key.command("create")
def create_key(
    account: Name,
    *,
    levels: Annotated[
        str,
        typer.Option(
            "--levels",
            help="r(eceive) p(ublish) u(pdate) a(cknowledge) g(et description) c(reate) d(elete).",
        ),
    ] = "rpuagcd",
    queue: Annotated[str | None, typer.Option("--queue", help="Good for this one alone.")] = None,
    starts: Annotated[datetime | None, typer.Option("--starts", help="In UTC.")] = None,
    ends: Annotated[datetime | None, typer.Option("--ends", help="In UTC.")] = None,
    output: Output = Format.table,
) -> None:
    """Make a key and write its secret, once: it is stored nowhere."""
    masters = MasterKeys.from_environment()
    with own_transaction() as connection:
        made = accounts.create_key(
            connection,
            account,
            masters,
            levels=levels,
            queue=queue,
            starts_at=_in_utc(starts),
            ends_at=_in_utc(ends),
        )
    if output is Format.json:
        show_json({"account": account, "key_id": made.key_id, "secret": made.secret})
        return
    say(f"key {made.key_id} of {account}. its secret is not shown again:")
    typer.echo(made.secret)


def _in_utc(time: datetime | None) -> datetime | None:
    return time.replace(tzinfo=UTC) if time is not None and time.tzinfo is None else time


@key.command("revoke")
def revoke_key(
    account: Name,
    key_id: Annotated[str, typer.Argument(help="See `penstock account show`.")],
    output: Output = Format.table,
) -> None:
    """End a key at once.  Exit code 1: it was not good any more, or is not there."""
    with own_transaction() as connection:
        was_good = accounts.revoke_key(connection, account, key_id)
    text = f"key {key_id} is revoked" if was_good else f"no good key {key_id} of {account}"
    done(text, output, account=account, key_id=key_id, revoked=was_good)
    if not was_good:
        raise typer.Exit(EXIT_NO)

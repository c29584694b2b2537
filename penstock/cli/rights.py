"""``penstock rights``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock import database
from penstock.cli.namespaces import done
from penstock.cli.output import Format, Output, as_dict, say, show, show_json
from penstock.cli.transactions import own_transaction
from penstock.database import config
from penstock.topics import rights

app = typer.Typer(help="Say who may do what, and where.", no_args_is_help=True)

Login = Annotated[str, typer.Argument(help="A login, or a role for all its members.")]
Right = Annotated[
    str,
    typer.Argument(
        help="A role: publisher, consumer, operator, reader, installer; "
        "with --namespace a verb: publish, consume, operate, read."
    ),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Only in this namespace and below it.")
]


@app.command()
def install(output: Output = Format.table) -> None:
    """Create the roles that are missing, and give each the functions that it may call."""
    with own_transaction(with_grants=True) as connection:
        created = rights.install(connection)
    done(f"created {', '.join(created) or 'nothing'}; all roles have their functions", output)


@app.command("print")
def print_() -> None:
    """Write the SQL that `install` would run, so that somebody else can run it."""
    if config.is_configured() and config.dialect_of_url(config.database_url()) == "mysql":
        with database.connect() as connection:
            text = rights.print_sql(connection)
    else:
        text = rights.print_sql()
    sys.stdout.write(text)


@app.command()
def refresh(output: Output = Format.table) -> None:
    """On MariaDB: read again who is in which role, after a GRANT or REVOKE of your own."""
    with database.connect() as connection:
        rights.refresh(connection)
    done("read who is in which role", output)


@app.command()
def grant(
    login: Login, right: Right, namespace: Namespace = None, output: Output = Format.table
) -> None:
    """Give a login a role, or a right in a namespace, which is then hidden from other logins."""
    with own_transaction(with_grants=True) as connection:
        if namespace is None:
            rights.add_member(connection, right, login)
        else:
            rights.grant_namespace(connection, namespace, login, right)
    done(f"{login}: {right} in {namespace or 'all'}", output, login=login, right=right)


@app.command()
def revoke(
    login: Login,
    right: Right,
    namespace: Namespace = None,
    *,
    unrestrict: Annotated[
        bool,
        typer.Option("--unrestrict", help="Also take the last right: the namespace is then open."),
    ] = False,
    output: Output = Format.table,
) -> None:
    """Take a role, or a right in a namespace, from a login."""
    with own_transaction(with_grants=True) as connection:
        if namespace is None:
            rights.remove_member(connection, right, login)
        else:
            rights.revoke_namespace(connection, namespace, login, right, unrestrict=unrestrict)
    done(f"{login}: no {right} in {namespace or 'all'}", output, login=login, right=right)


@app.command("show")
def show_(output: Output = Format.table) -> None:
    """Show the roles, who is in them, and the rights in single namespaces."""
    with database.connect() as connection:
        found = [as_dict(each) for each in rights.roles(connection)]
        grants = rights.grants_of(connection)
    if output is Format.json:
        show_json({"roles": found, "grants": grants})
        return
    for role in found:
        role["functions"] = len(role["functions"])
    show(found, output)
    say("\nrights in single namespaces:")
    show(grants, output)

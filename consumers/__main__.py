"""``python -m consumers``: the daemon."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from consumers import daemon
from consumers.settings import Settings, load_handler, parse_pairs, parse_roles
from penstock import config
from penstock.errors import PenstockError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    *,
    roles: Annotated[str, typer.Option(help="sequencer, sweep, relay, consumers")] = (
        "sequencer,sweep"
    ),
    consumer: Annotated[
        list[str] | None, typer.Option(help="SUBSCRIPTION=module:function; repeat")
    ] = None,
    batch_consumer: Annotated[
        list[str] | None, typer.Option(help="the same, for a function that takes a batch")
    ] = None,
    relay: Annotated[
        list[str] | None, typer.Option(help="SUBSCRIPTION=SINK, e.g. jsonl:folder; repeat")
    ] = None,
    consumer_id: Annotated[str | None, typer.Option(help="default: host, process, random")] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=100_000)] = 500,
    http_host: str = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="0: any free port; the log names it")] = 0,
    drain_seconds: float = 30.0,
    log_level: str = "info",
) -> None:
    """Run consumers, the sequencer, relays and the sweep until SIGTERM."""
    daemon.log_to_stderr(log_level)
    settings = Settings(
        url=config.database_url(),
        roles=parse_roles(roles),
        consumers=_handlers(consumer, "--consumer"),
        batch_consumers=_handlers(batch_consumer, "--batch-consumer"),
        relays=parse_pairs(relay or [], "--relay"),
        consumer_id=consumer_id,
        batch_size=batch_size,
        http_host=http_host,
        http_port=http_port,
        drain_seconds=drain_seconds,
    )
    raise typer.Exit(daemon.run(settings))


def _handlers(given: list[str] | None, option: str) -> dict[str, Callable[..., Any]]:
    pairs = parse_pairs(given or [], option)
    return {name: load_handler(address) for name, address in pairs.items()}


if __name__ == "__main__":
    try:
        app()
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        sys.exit(2)

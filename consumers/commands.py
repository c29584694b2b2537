"""``penstock daemon``, which is also ``python -m consumers``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from consumers.settings import Settings, load_handler, parse_log_level, parse_pairs, parse_roles
from penstock import config, process


def run_daemon(
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
    http_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="0: any free port; the log names it")
    ] = 0,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="how long SIGTERM waits for the work in hand")
    ] = 30.0,
    stuck_seconds: Annotated[
        float, typer.Option(min=1, help="a batch that takes longer turns /livez to 503")
    ] = 300.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning, error")] = "info",
) -> None:
    """Run consumers, the sequencer, relays and the sweep until SIGTERM."""
    from consumers import daemon

    process.log_to_stderr(parse_log_level(log_level))
    _import_from_here()
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
        stuck_seconds=stuck_seconds,
    )
    raise typer.Exit(daemon.run(settings))


def _handlers(given: list[str] | None, option: str) -> dict[str, Callable[..., Any]]:
    pairs = parse_pairs(given or [], option)
    return {name: load_handler(address) for name, address in pairs.items()}


def _import_from_here() -> None:
    """Handlers lie where the daemon is started; an installed command does not look there."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)

"""``penstock work``: a worker of a queue whose handler is a command."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import Annotated

import typer

from penstock.cli.output import say
from penstock.consumer.handlers.failures import HandlerFailed, HandlerTimedOut
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.queue.delivery import QueueDelivery
from penstock.consumer.running.process import exit_text
from penstock.errors import InvalidArgument, PenstockError
from penstock.subscriptions import queue
from penstock.subscriptions.verdicts import Verdict

#: sysexits.h: EX_TEMPFAIL and EX_DATAERR.
AGAIN_CODE, DISCARD_CODE = 75, 65
#: How much of what a command says becomes the reason of a failure.
_REASON = 500


class CommandFailed(PenstockError):
    """The command of a worker ended with an exit code that means a failure."""


def work(
    name: Annotated[str, typer.Argument(metavar="QUEUE")],
    command: Annotated[list[str], typer.Argument(help="After --: the command and its arguments.")],
    *,
    concurrency: Annotated[int, typer.Option(min=1, help="So many events at once.")] = 1,
    visibility: Annotated[
        float | None, typer.Option(min=1, help="Seconds; else the queue's own.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="End a command that takes longer.")
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Leave when nothing is ready.")
    ] = False,
) -> None:
    """Receive the events of a queue and run a command for each, until SIGTERM.

    The payload is its standard input; PENSTOCK_TOPIC, _PARTITION, _SEQUENCE, _KEY, _TYPE, _TAG and
    _DELIVERIES are in its environment. Exit code 0 finishes the event, 75 asks for it again after
    its backoff, 65 discards it, and any other is a failure.
    """

    if shutil.which(command[0]) is None:
        # As a failure of each event it would make a dead letter of each.
        raise InvalidArgument(
            f"there is no command {command[0]!r}", hint="give one that is in PATH, or its path"
        )

    def handle(delivery: QueueDelivery) -> Verdict | None:
        return _run(command, delivery, seconds)

    consumer = QueueConsumer(
        None, name, handler=handle, concurrency=concurrency, visibility_seconds=visibility
    )
    if not until_idle:
        consumer.run()
    else:
        try:
            consumer.run_until_idle()
        except HandlerFailed as error:
            say(f"{error}")
    say(f"queue {name}: {consumer.stats.events} done, {consumer.stats.failures} failed")
    if consumer.stats.failures and until_idle:
        raise typer.Exit(1)


def _run(command: list[str], delivery: QueueDelivery, seconds: float | None) -> Verdict | None:
    try:
        code, errors = _ended(command, delivery, seconds)
    except FileNotFoundError as error:
        raise InvalidArgument(f"there is no command {command[0]!r}") from error
    except subprocess.TimeoutExpired as error:
        raise HandlerTimedOut(f"the command was ended after {seconds} s") from error
    if code == AGAIN_CODE:
        return queue.AGAIN
    if code == DISCARD_CODE:
        return queue.DISCARD
    if code != 0:
        said = errors.decode(errors="replace").strip()[-_REASON:]
        raise CommandFailed(f"{exit_text(code)}: {said}")
    return None


def _ended(command: list[str], delivery: QueueDelivery, seconds: float | None) -> tuple[int, bytes]:
    """The exit code of a command for an event, and what it said on standard error.

    It is a session of its own: Ctrl-C ends the worker and not the command under way, and a command
    that takes too long is ended with all that it has started.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | _environment(delivery),
        start_new_session=True,
    ) as process:
        try:
            _, errors = process.communicate(delivery.payload, timeout=seconds)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, errors


def _environment(delivery: QueueDelivery) -> dict[str, str]:
    return {
        "PENSTOCK_TOPIC": delivery.topic,
        "PENSTOCK_PARTITION": str(delivery.partition),
        "PENSTOCK_SEQUENCE": str(delivery.sequence),
        "PENSTOCK_KEY": delivery.key or "",
        "PENSTOCK_TYPE": delivery.type,
        "PENSTOCK_TAG": delivery.tag,
        "PENSTOCK_DELIVERIES": str(delivery.deliveries),
    }

"""A second Ctrl-C: a relay that waits for its sink ends at once, and says so."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import closing, suppress

import pytest

from tests.consumers.process import until
from tests.ops.conftest import TOPIC, Run
from tests.ops.test_commands import PENSTOCK, Connection, fill
from tests.relay.test_abort import Silent, environ


@pytest.mark.parametrize("kind", ["relay", "group"])
def test_a_second_signal_ends_a_relay_at_once(
    run: Run, connection: Connection, database_url: str, kind: str
) -> None:
    """The first one waits for the sink, which never answers.  Guard: `again`."""
    fill(connection)
    with closing(Silent()) as silent:
        sink = f"webhook+http://127.0.0.1:{silent.port}/in#seconds=600"
        args = ["relay", "hooks", sink]
        if kind == "group":
            args = ["relay", "group", "run", "all", "--sink", f"hooks={sink}"]
            made = ["relay", "group", "set", "all", "--sink", "hooks", "--ack-quorum", "1"]
        else:
            made = ["subscription", "create", "hooks"]
        assert run(*made, "--topic", TOPIC).code == 0
        run("sequence")
        relay = subprocess.Popen(
            [PENSTOCK, *args, "--forever"],
            env=os.environ | environ(silent.port) | {"PENSTOCK_DATABASE_URL": database_url},
            stderr=subprocess.PIPE,
        )
        try:
            until(silent.heard.is_set, "it waits for its sink")
            while relay.poll() is None:
                relay.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    relay.wait(0.2)
            assert relay.stderr is not None
            said = relay.stderr.read().decode()
        finally:
            relay.kill()
            relay.communicate(timeout=30)
    assert (relay.returncode, "ended at once" in said) == (1, True), said

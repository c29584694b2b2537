"""`python -m tools.pulsar fetch | start | stop | status`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from tools.pulsar import PulsarStandalone, PulsarUnavailable, fetch
from tools.pulsar.fetch import HOME

_STATE = HOME / "running.json"
_STOP_SECONDS = 20


def main(arguments: list[str] | None = None) -> int:
    """Run one verb.  With exit code 1, a line says what to do."""
    parser = argparse.ArgumentParser(prog="python -m tools.pulsar", description=__doc__)
    parser.add_argument("verb", choices=["fetch", "start", "stop", "status"])
    verb = parser.parse_args(arguments).verb
    try:
        return {"fetch": _fetch, "start": _start, "stop": _stop, "status": _status}[verb]()
    except PulsarUnavailable as error:
        print(f"pulsar: {error}", file=sys.stderr)
        return 1


def _fetch() -> int:
    lib = fetch()
    print(f"pulsar: {len(list(lib.glob('*.jar')))} jars in {_shown(lib)}")
    return 0


def _start() -> int:
    if _running() is not None:
        return _status()
    broker = PulsarStandalone(HOME / "data").start()
    _STATE.write_text(
        json.dumps({"pid": broker.pid, "service": broker.service_url, "admin": broker.admin_url})
    )
    return _status()


def _status() -> int:
    state = _running()
    if state is None:
        print("pulsar: not running")
        return 1
    print(f"pulsar: pid {state['pid']}, {state['service']}, admin {state['admin']}")
    return 0


def _stop() -> int:
    state = _running()
    if state is not None:
        pid = int(state["pid"])
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while _is_broker(pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        if _is_broker(pid):
            os.kill(pid, signal.SIGKILL)
        print("pulsar: stopped")
    _STATE.unlink(missing_ok=True)
    return 0


def _running() -> dict[str, str] | None:
    if not _STATE.is_file():
        return None
    state: dict[str, str] = json.loads(_STATE.read_text())
    return state if _is_broker(int(state["pid"])) else None


def _is_broker(pid: int) -> bool:
    """Whether the process is still the broker, and not another one with a reused process id."""
    try:
        return b"PulsarStandaloneStarter" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _shown(path: Path) -> str:
    return os.path.relpath(path)


if __name__ == "__main__":
    sys.exit(main())

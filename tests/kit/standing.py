"""A program that stands still at a place, to be killed there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

#: Two Sparks on a busy machine; a quiet one needs a tenth of it.
_START_SECONDS = 240


@contextlib.contextmanager
def standing(
    module: str, *arguments: str, marker: Path, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """``python -m module`` once it has made the marker.  The end kills it and all its children."""
    output = marker.with_suffix(".log")
    with output.open("wb") as stream:
        run = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=stream,
            stderr=stream,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not marker.exists():
                assert run.poll() is None, output.read_text()[-4000:]
                assert time.monotonic() < deadline, output.read_text()[-4000:]
                time.sleep(0.05)
            yield
        finally:
            children: list[psutil.Process] = []
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                children = psutil.Process(run.pid).children(recursive=True)
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(children, timeout=10)

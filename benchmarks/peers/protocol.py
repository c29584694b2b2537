"""How the run talks to a peer that runs in another Python: lines of JSON, both ways.

This module is imported on both sides, so it uses only the standard library.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
PAYLOAD = b"5a" * 100
BATCH_SIZE = 500


def serve(commands: Mapping[str, Callable[[int], float]]) -> None:
    """The peer's side.  Each line names a command and a number of rows.  The answer is seconds."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"seconds": commands[request["do"]](request["rows"])}
        except Exception as error:  # the run must learn of every failure
            print(json.dumps({"error": repr(error)}), flush=True)
            raise
        print(json.dumps(answer), flush=True)


class PeerProcess:
    """Our side: starts the module in the peers' Python and sends it commands."""

    def __init__(self, python: Path, module: str, url: str) -> None:
        self._process = subprocess.Popen(
            [str(python), "-m", module, url], cwd=ROOT, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        self._answer()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def ask(self, command: str, rows: int) -> float:
        """Let the peer run a command.  Returns the seconds it took by the peer's own clock."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, "rows": rows}) + "\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            raise RuntimeError(f"the peer {self._process.args!r} failed: {answer['error']}")
        return dict(answer)

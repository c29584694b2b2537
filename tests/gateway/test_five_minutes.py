"""The first event and the queue over HTTP in five minutes, as a newcomer runs the two pages."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_ENDS = "\n{}\npython -m resources.embedded stop\n"


#: Of each page: how its commands end what they have started, and what they write.
PAGES = {
    "docs/reference/gateway.md": ("kill %1 %2; wait", r'"data(_base64":"aGVsbG8="|":"hello")'),
    "docs/first-hour.md": ("", r"\bAda\b.*order"),
}


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", PAGES)
def test_the_first_minutes_of_a_page(page: str, tmp_path: Path) -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    own = tmp_path / ".penstock"
    own.mkdir()
    # The checkout of the page is this one, but the database, the files and the port are the test's.
    (own / "venv").symlink_to(Path(sys.prefix))
    script = block.replace("8080", port)
    activate = f". {shlex.quote(str(own / 'venv/bin/activate'))}"
    script = script.replace(". .penstock/venv/bin/activate", activate) + _ENDS.format(
        PAGES[page][0]
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PENSTOCK_", "DB_")) and name != "VIRTUAL_ENV"
    }
    environment |= {
        "PENSTOCK_EMBEDDED_DIRECTORY": str(own / "postgres"),
        "PENSTOCK_GATEWAY_PORT": port,
        "PYTHONPATH": str(ROOT),
    }
    with subprocess.Popen(
        ["bash", "-m", "-c", script], cwd=tmp_path, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as running:  # fmt: skip
        try:
            said, told = running.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            raise
        finally:
            stop = [sys.executable, "-m", "resources.embedded", "stop"]
            subprocess.run(stop, env=environment, cwd=tmp_path, capture_output=True)
    logs = [each.read_text() for each in sorted(tmp_path.glob("*.log"))]
    assert running.returncode == 0, (said, told, logs)
    assert re.search(PAGES[page][1], said), (said, told, logs)

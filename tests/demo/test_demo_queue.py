"""The demo of queues: a killed, a paused and a failing worker, and books that are right."""

from __future__ import annotations

import pytest

from tools import demo_queue


@pytest.mark.long
def test_each_job_is_done_once(
    database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_queue, "VISIBILITY_SECONDS", 1.0)
    arguments = ["--jobs", "300", "--workers", "3", "--database", database_url]
    assert demo_queue.main(arguments) == 0
    assert "300 jobs, each exactly once" in capsys.readouterr().out

"""How a long-running program logs: the fields of ``extra`` are in the line, in each form."""

from __future__ import annotations

import json
import logging

from penstock.consumer.running.process import JsonLines, TextLines


def record() -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "penstock.service", "msg": "%s", "args": ("started",)})
    made.http_port = 9464
    return made


def test_a_line_of_text_names_the_port() -> None:
    line = TextLines(process=2).format(record())
    assert line.endswith("process=2 penstock.service: started http_port=9464")


def test_a_line_of_json_names_the_port() -> None:
    line = json.loads(JsonLines(process=2).format(record()))
    assert (line["event"], line["http_port"], line["process"]) == ("started", 9464, 2)


def test_a_failure_has_its_trace_after_the_line() -> None:
    made = record()
    made.exc_info = (ValueError, ValueError("broken"), None)
    first, *rest = TextLines().format(made).splitlines()
    assert first.endswith("http_port=9464")
    assert rest[-1] == "ValueError: broken"

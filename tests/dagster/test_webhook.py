"""Failed runs are told to a webhook: until it has taken them, in bounded time, without a secret."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pytest

from dagster_project.sensors import failures
from penstock.errors import ConfigurationError, WebhookUnavailable
from resources import webhook
from tests.dagster.conftest import EPOCH_EVENTS, House
from tests.kit.proof import proves

SECRET = "hook-s3cret"


@dataclass
class Hook:
    """A webhook, what it was told, and the codes that it answers with; then 204."""

    url: str = ""
    told: list[dict[str, str]] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)


@pytest.fixture
def hook(environment: pytest.MonkeyPatch) -> Iterator[Hook]:
    """It runs, and the environment names it."""
    found = Hook()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            code = found.codes.pop(0) if found.codes else 204
            if code == 204:
                found.told.append(body)
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found.url = f"http://127.0.0.1:{server.server_port}/{SECRET}"
    environment.setenv(webhook.VARIABLE, found.url)
    yield found
    server.shutdown()
    server.server_close()


def failed(house: House, text: str = "the disk is full") -> dg.DagsterRun:
    """A run that fails in two of its steps."""

    @dg.op
    def first() -> None:
        raise ValueError(text)

    @dg.op
    def second() -> None:
        raise OSError("a second one")

    @dg.job(name="unlucky", executor_def=dg.in_process_executor)
    def job() -> None:
        first()
        second()

    done = job.execute_in_process(
        instance=house.instance,
        raise_on_error=False,
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
    )
    assert not done.success
    return done.dagster_run


def said(done: dg.SensorExecutionData) -> str:
    """What a tick says of itself."""
    return done.skip_message or ""


def waiting(house: House) -> dict[str, Any]:
    """What the cursor holds."""
    found: dict[str, Any] = json.loads(house.cursors["run_failures"] or "{}")["waiting"]
    return found


def due(house: House) -> None:
    """As if the pauses were over."""
    held = json.loads(house.cursors["run_failures"] or "{}")
    held["waiting"] = {
        run: [at, [*before[:2], 0.0] if before else None]
        for run, (at, before) in held["waiting"].items()
    }
    house.cursors["run_failures"] = json.dumps(held)


def test_a_failure_is_told_once_with_the_first_error_of_each_step(
    house: House, hook: Hook, environment: pytest.MonkeyPatch
) -> None:
    """A job of ours, and one with two failed steps; what was before the webhook is not told."""
    failed(house)
    environment.delenv(webhook.VARIABLE)
    assert said(house.sense("run_failures")) == f"{webhook.VARIABLE} is not set"
    environment.setenv(webhook.VARIABLE, hook.url)
    assert said(house.sense("run_failures")) == "begins with the next failure"
    assert said(house.sense("run_failures")) == "0 told, 0 wait"
    house.create_topic()
    house.publish(2 * EPOCH_EVENTS)
    for name in ("sequence", "seal"):
        house.done(name)
    clean = house.job("clean").dagster_run
    run = failed(house)
    assert said(house.sense("run_failures")) == "2 told, 0 wait"
    ours, other = hook.told
    assert (ours["job"], ours["run"]) == ("clean", clean.run_id)
    assert "nothing of shop/orders is removed" in ours["text"]
    assert other["run"] == run.run_id and run.run_id in other["text"]
    assert "first: ValueError: the disk is full" in other["text"]
    assert "second: OSError: a second one" in other["text"]
    assert said(house.sense("run_failures")) == "0 told, 0 wait"
    assert len(hook.told) == 2


def test_an_error_of_ours_is_told_and_not_what_it_was_made_of(house: House, hook: Hook) -> None:
    """A policy file that is no YAML: where, and not only that a parser was at work.

    Guard: failures._why.
    """
    house.sense("run_failures")
    (house.folder / "policies.yaml").write_text("topics: [")
    assert not house.job("seal").success
    house.sense("run_failures")
    (told,) = hook.told
    assert "policies.yaml in line 1" in told["text"] and "ParserError" not in told["text"]


@proves("a failed run is told")
def test_what_was_not_taken_is_told_by_a_later_tick(house: House, hook: Hook) -> None:
    """Guard: the cursor keeps it.  Others go on, and there is a pause before the next attempt."""
    house.sense("run_failures")
    hook.codes = [500]
    first, second = failed(house), failed(house)
    done = house.sense("run_failures")
    assert said(done).startswith("1 told, 1 wait: ") and "it answered 500" in said(done)
    assert SECRET not in said(done) + str(house.cursors)
    assert [each["run"] for each in hook.told] == [second.run_id]
    assert said(house.sense("run_failures")) == "0 told, 1 wait"
    hook.codes = [302, 404]
    for _ in range(2):
        due(house)
        house.sense("run_failures")
    assert waiting(house).keys() == {first.run_id}
    due(house)
    assert said(house.sense("run_failures")) == "1 told, 0 wait"
    assert hook.told[-1]["run"] == first.run_id


@proves("a failed run is told")
def test_what_is_kept_is_bounded(house: House, hook: Hook, environment: pytest.MonkeyPatch) -> None:
    """By number: the rest stays in Dagster's records.  By age: a day.  Guard: both limits."""
    environment.setattr(failures, "MOST_WAITING", 2)
    house.sense("run_failures")
    hook.codes = [500] * 2
    runs = [failed(house).run_id for _ in range(3)]
    house.sense("run_failures")
    assert [*waiting(house)] == runs[:2]
    environment.setattr(failures, "KEPT_SECONDS", -1.0)
    hook.codes = [500] * 2
    due(house)
    house.sense("run_failures")
    assert waiting(house) == {}
    house.sense("run_failures")
    assert [each["run"] for each in hook.told] == runs[2:]


def test_an_address_that_is_no_address_loses_nothing(
    house: House, hook: Hook, environment: pytest.MonkeyPatch
) -> None:
    """The tick fails without showing it, and the failure is told once the address is right."""
    house.sense("run_failures")
    run = failed(house)
    environment.setenv(webhook.VARIABLE, "https://user:t0ken@host/hook")
    with pytest.raises(Exception, match="has a user or a password") as caught:
        house.sense("run_failures")
    assert "t0ken" not in repr(caught.value) + str(caught.value.__cause__)
    environment.setenv(webhook.VARIABLE, hook.url)
    house.sense("run_failures")
    assert [each["run"] for each in hook.told] == [run.run_id]


@proves("no secret is shown by Dagster")
def test_the_text_has_no_secret(house: House, hook: Hook, environment: pytest.MonkeyPatch) -> None:
    """Of the environment, of an address in the error, or given as token=...; and it is short."""
    environment.setenv("SOME_PASSWORD", "correct-horse")
    house.sense("run_failures")
    failed(
        house,
        f"correct-horse at https://ann:battery@host/x?token=staple posting to {hook.url} "
        + "x" * 5_000,
    )
    house.sense("run_failures")
    (message,) = hook.told
    for secret in ("correct-horse", "battery", "staple", SECRET):
        assert secret not in message["text"]
    assert len(message["text"]) <= failures.MOST_CHARACTERS
    assert "second: OSError" in message["text"]


@proves("no secret is shown by Dagster")
@pytest.mark.parametrize(
    "address",
    [
        "https://user:t0ken@host/hook", "https://host:t0ken/hook", "https://host/a t0ken",
        "ftp://host/t0ken", "https:///t0ken", "t0ken", "https://[t0ken/x", "https://host/t0k\u00e9n",
    ],
)  # fmt: skip
def test_a_wrong_address_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        webhook.address({webhook.VARIABLE: address})
    assert "t0k" not in str(caught.value) and webhook.VARIABLE in str(caught.value)
    assert caught.value.__cause__ is None


@proves("a failed run is told")
def test_a_server_that_drips_is_left_in_time() -> None:
    """A byte every now and then: each read is quick.  Guard: the limit on the whole post."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(WebhookUnavailable, match="no answer within 2 s") as caught:
        webhook.post(f"http://127.0.0.1:{server.server_port}/{SECRET}", {"text": "x"}, 2)
    took = time.monotonic() - began
    Dripping.stop.set()
    server.shutdown()
    server.server_close()
    assert took < 10 and SECRET not in str(caught.value)


class Dripping(http.server.BaseHTTPRequestHandler):
    """Sends a header without an end."""

    stop = threading.Event()

    def do_POST(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        try:
            while not self.stop.wait(0.1):
                self.wfile.write(b"x")
        except OSError:
            pass

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@proves("no secret is shown by Dagster", guard="the look before the use")
def test_a_post_that_cannot_be_made_does_not_show_the_address() -> None:
    for place in (f"http://127.0.0.1:1/{SECRET}", f"http://{SECRET}.invalid/"):
        with pytest.raises(WebhookUnavailable) as caught:
            webhook.post(place, {"text": "x"}, 10)
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None and caught.value.__context__ is None

"""The page on the admin port: closed, read-only, and what it shows."""

from __future__ import annotations

import itertools
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pymysql
import pytest

import penstock
from consumers.gateway.access import Failures
from consumers.gateway.pages import showing, site
from consumers.gateway.pages.readings import Readings
from consumers.gateway.pages.sessions import SESSION_SECONDS, Sessions
from penstock import log, subscriptions
from penstock.subscriptions import queue, stream
from tests.contract.gateway.kit import Gateway, send
from tests.contract.gateway.page_kit import KEY, NASTY, Visitor, page_of, served, text_of
from tests.kit.proof import proves

_numbers = itertools.count(1)


class Looked(NamedTuple):
    """What the tests look at."""

    topic: str
    stream: str
    queue: str

    @property
    def namespace(self) -> str:
        return self.topic.partition("/")[0]


@pytest.fixture
def looked(gateway: Gateway) -> Looked:
    """A topic with a stream and a queue, and three events, whose names all try to be a tag."""
    owner, number = gateway.owner, next(_numbers)
    name = f"looked{number}/at"
    penstock.create_topic(owner, name, create_namespaces=True)
    for each in range(3):
        penstock.publish(owner, name, NASTY.encode(), key=NASTY, type=f"{NASTY}{each}")
    gateway.sequence()
    stream.subscribe(owner, f"stream{number}", [name], start="earliest")
    queue.subscribe(owner, f"queue{number}", [name])
    return Looked(name, f"stream{number}", f"queue{number}")


@proves("the page of the gateway")
def test_without_a_key_all_but_health_is_closed(gateway: Gateway) -> None:
    with page_of(gateway.db.url, key=None) as page:
        for path in ("/", "/sign-in", "/style.css", "/consumers"):
            assert page.get(path).status == 403
        assert page.post("/sign-in", key="", person="x").status == 403
        assert page.get("/livez").status == 200
        assert page.post("/livez").status == 404


def test_nobody_looks_who_has_not_signed_in(page: Visitor) -> None:
    stranger = Visitor(page.port)
    for path in ("/", "/consumers", "/nowhere"):
        reply = stranger.get(path)
        assert (reply.status, reply.headers["location"], reply.body) == (303, "/sign-in", b"")
    assert stranger.post("/pause", name="x", reason="y").status == 401
    assert stranger.sign_in("wrong").status == 401
    stranger.cookie = page.cookie[:-2] + "xx"
    assert stranger.get("/").status == 303


def test_wrong_keys_are_few(gateway: Gateway) -> None:
    with served(gateway.db.url) as stranger:
        seen = [stranger.sign_in("wrong").status for _ in range(11)]
        assert seen == [401] * 10 + [429]
        assert stranger.sign_in().status == 429


def test_a_session_ends_and_another_key_ends_it() -> None:
    now = [1_000.0]
    sessions = Sessions(KEY, lambda: now[0])
    cookie = sessions.begin("Ada")
    found = sessions.read(cookie)
    assert found is not None and found.person == "Ada"
    other = sessions.read(sessions.begin("Ada"))
    assert other is not None and other.token != found.token
    assert Sessions("z" * 40, lambda: now[0]).read(cookie) is None
    for wrong in ("", ".", "é.x", cookie + "A", "A" * 5_000, cookie.partition(".")[0] + "."):
        assert sessions.read(wrong) is None
    now[0] += SESSION_SECONDS
    assert sessions.read(cookie) is None


def test_every_answer_forbids_scripts_frames_and_caches(page: Visitor) -> None:
    for path in ("/", "/sign-in", "/style.css", "/nowhere"):
        told = page.get(path).headers
        assert "default-src 'none'" in told["content-security-policy"]
        assert "script" not in told["content-security-policy"]
        assert "frame-ancestors 'none'" in told["content-security-policy"]
        assert (told["referrer-policy"], told["cache-control"]) == ("no-referrer", "no-store")
        assert told["x-content-type-options"] == "nosniff"
    cookie = Visitor(page.port).sign_in().headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Secure" not in cookie
    assert KEY not in cookie


def test_topics_queues_and_findings_are_on_the_first_page(page: Visitor, looked: Looked) -> None:
    found = page.text("/", namespace=looked.namespace)
    assert f"{looked.topic} - 3 - 3" in found
    assert f"{looked.stream} stream 3 behind" in found and f"{looked.queue} queue 3 behind" in found
    assert f"{looked.queue} 3 0 0 0" in page.text("/", queue_after=looked.queue[:-1])
    assert "Why is it not moving" in found
    assert " UTC" in found


@proves("the page of the gateway")
def test_what_is_in_the_database_is_never_markup(page: Visitor, looked: Looked) -> None:
    for path, given in (
        ("/peek", {"topic": looked.topic}),
        ("/peek-queue", {"name": looked.queue}),
        ("/peek", {"topic": looked.topic, "key": NASTY}),
        ("/subscription", {"name": NASTY}),
        ("/", {"namespace": NASTY}),
    ):
        reply = page.get(path, **given)
        assert reply.status == 200
        assert b"<script" not in reply.body and b"<i>" not in reply.body
        assert NASTY in text_of(reply) or "&lt;script" in reply.body.decode()


def test_a_log_is_looked_at_by_sequence_time_and_key(page: Visitor, looked: Looked) -> None:
    assert "has the sequences 1 to 3" in page.text("/peek", topic=looked.topic)
    by_sequence = page.get("/peek", topic=looked.topic, sequence=3)
    assert f"{NASTY}2" in text_of(by_sequence) and f"{NASTY}1" not in text_of(by_sequence)
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert "no events there" in page.text("/peek", topic=looked.topic, since=soon.isoformat())
    early = page.text("/peek", topic=looked.topic, since="2020-01-31")
    assert f"{NASTY}0" in early
    assert "Looked at those from 1 on" in page.text("/peek", topic=looked.topic, key=NASTY)
    assert "no events there" in page.text("/peek", topic=looked.topic, key="other")
    assert "no partition 7" in page.text("/peek", topic=looked.topic, partition=7)
    assert page.get("/peek", topic=looked.topic, sequence="x").status == 400
    assert page.get("/peek", topic=looked.topic, since="soon").status == 400
    assert page.get("/peek").status == 400


def test_a_look_for_a_key_is_bounded(
    gateway: Gateway, page: Visitor, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    from consumers.gateway.pages import peeking

    monkeypatch.setattr(peeking, "MOST_LOOKED_AT", 2)
    monkeypatch.setattr(peeking, "_STEP", 1)
    found = page.text("/peek", topic=looked.topic, key=NASTY)
    assert "Looked at those from 2 on" in found and f"{NASTY}0" not in found


def test_pause_and_resume_tell_who_and_why(gateway: Gateway, page: Visitor, looked: Looked) -> None:
    assert page.post("/pause", name=looked.stream).status == 400
    told = page.post("/pause", name=looked.stream, reason="the bank is <b>closed</b>")
    assert (told.status, told.headers["location"]) == (303, f"/subscription?name={looked.stream}")
    found = subscriptions.describe_subscription(gateway.owner, looked.stream)
    assert found.paused_reason == "the bank is <b>closed</b> (Ada <i>)"
    assert "the bank is <b>closed</b> (Ada <i>)" in page.text("/subscription", name=looked.stream)
    page.post("/resume", name=looked.stream)
    assert subscriptions.describe_subscription(gateway.owner, looked.stream).paused_at is None
    assert page.post("/pause", name="nobody", reason="x").status == 409


@proves("the page of the gateway")
def test_a_form_of_another_session_changes_nothing(
    gateway: Gateway, page: Visitor, looked: Looked
) -> None:
    other = Visitor(page.port)
    other.sign_in()
    for token in ("", other.token, page.token[:-1] + "é"):
        assert page.post("/pause", name=looked.stream, reason="x", token=token).status == 403
    assert page.get("/pause", name=looked.stream, reason="x").status == 404
    as_text = send(
        page.port,
        "POST",
        "/pause",
        f"token={page.token}&name={looked.stream}&reason=x".encode(),
        {"Cookie": page.cookie, "Content-Type": "text/plain"},
    )
    assert as_text.status == 415
    assert subscriptions.describe_subscription(gateway.owner, looked.stream).paused_at is None


@proves("the page of the gateway")
def test_the_page_only_reads_unless_told_otherwise(gateway: Gateway, looked: Looked) -> None:
    with page_of(gateway.db.url, writes=False) as page:
        assert page.post("/pause", name=looked.stream, reason="x").status == 403
        assert "Pause" not in page.text("/subscription", name=looked.stream)
        assert "read-only" in page.text("/")
    assert subscriptions.describe_subscription(gateway.owner, looked.stream).paused_at is None


def test_a_login_sees_what_its_role_allows(gateway: Gateway, looked: Looked) -> None:
    reader = gateway.tenants.url_of(gateway.tenants.login("reader"))
    with page_of(reader) as page:
        assert f"{looked.stream} stream 3 behind" in page.text("/", namespace=looked.namespace)
        assert "may not do this" in page.text("/peek-queue", name=looked.queue)
        assert page.post("/pause", name=looked.stream, reason="x").status == 409
    assert subscriptions.describe_subscription(gateway.owner, looked.stream).paused_at is None


def test_a_database_that_is_away_is_told_without_its_address(gateway: Gateway) -> None:
    with page_of("postgresql://somebody:secret@127.0.0.1:1/x") as page:
        found = page.text("/")
        assert "the database cannot be used" in found
        assert "secret" not in found and "somebody" not in found


def test_long_lists_come_in_parts(
    gateway: Gateway, page: Visitor, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    from consumers.gateway.pages import overview

    penstock.create_topic(gateway.owner, f"{looked.namespace}/too", if_not_exists=True)
    monkeypatch.setattr(overview.part_of, "__defaults__", (1,))
    first = page.get("/", namespace=looked.namespace)
    assert (
        f"after={looked.namespace}%2Fat" in first.body.decode()
        and f"{looked.namespace}/too" not in text_of(first)
    )
    second = page.text("/", namespace=looked.namespace, after=looked.topic)
    assert f"{looked.namespace}/too" in second and f"{looked.topic} -" not in second


def test_a_reading_is_shared_for_a_moment_and_kept_no_longer(gateway: Gateway) -> None:
    now, asked = [1_000.0], list[str]()
    with closing(Readings(gateway.db.url, lambda: now[0])) as readings:
        for name in ("first", "first", "second"):
            readings.read(name, lambda _, name=name: asked.append(name))  # type: ignore[misc]
        assert asked == ["first", "second"] and [*readings._kept] == ["first", "second"]
        now[0] += 2.0
        readings.read("third", lambda _: None)
        assert [*readings._kept] == ["third"]


def test_what_is_not_read_in_time_is_said(
    page: Visitor, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    from consumers.gateway.pages import readings

    monkeypatch.setattr(readings, "BUDGET_SECONDS", 0.0)
    found = page.text("/", namespace=looked.namespace)
    assert "not read in time" in found


def test_a_queue_that_is_not_counted_in_time_hides_no_other(
    gateway: Gateway, page: Visitor, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics = queue.statistics

    def too_slow(connection: Any, name: str) -> queue.QueueStatistics:
        if name == looked.queue:
            raise pymysql.OperationalError(3024, "maximum statement execution time exceeded")
        return statistics(connection, name)

    queue.subscribe(gateway.owner, f"{looked.queue}-other", [looked.topic])
    monkeypatch.setattr(queue, "statistics", too_slow)
    found = page.text("/", queue_after=looked.queue[:-1])
    assert f"{looked.queue} not read in time" in found and f"{looked.queue}-other 3 0 0 0" in found


def test_the_rate_of_a_topic_is_that_between_two_looks(
    gateway: Gateway, page: Visitor, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    from consumers.gateway.pages import readings

    now = [1_000.0]
    monkeypatch.setattr(readings.Readings, "now", lambda _: now[0])
    monkeypatch.setattr(readings, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(readings.Readings.read, "__defaults__", (0.0,))
    before = sum(log.high_watermarks(gateway.owner, looked.topic).values())
    page.text("/", namespace=looked.namespace)
    penstock.publish(gateway.owner, looked.topic, b"one more")
    gateway.sequence()
    now[0] += 2.0
    assert f"{looked.topic} 0.5 {before + 1} - {before + 1}" in page.text(
        "/", namespace=looked.namespace
    )


@proves("the page of the gateway", guard="the token")
def test_without_the_token_any_form_would_act(
    gateway: Gateway, page: Visitor, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "is_token", lambda *_: True)
    page.post("/pause", name=looked.stream, reason="x", token="")
    assert subscriptions.describe_subscription(gateway.owner, looked.stream).paused_at is not None


@proves("the page of the gateway", guard="escaping")
def test_without_escaping_a_type_would_be_markup(
    gateway: Gateway, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = showing.environment()
    made.autoescape = False
    monkeypatch.setattr(showing, "environment", lambda: made)
    with page_of(gateway.db.url) as page:
        assert b"<script" in page.get("/peek", topic=looked.topic).body


@proves("the page of the gateway", guard="the count of wrong keys")
def test_without_the_count_the_key_could_be_tried_for_ever(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failures, "require_few", lambda *_: None)
    with served(gateway.db.url) as stranger:
        assert {stranger.sign_in("wrong").status for _ in range(12)} == {401}

"""Subscriptions and who works on them: leases, heartbeats, last errors; pause and resume."""

from __future__ import annotations

from typing import Any

from consumers.gateway.pages.overview import part_of
from consumers.gateway.pages.showing import link
from consumers.gateway.pages.visits import PageRoute, Visit, redirect
from penstock import subscriptions
from penstock.subscriptions import queue
from penstock.upkeep.pages import PageAnswer

#: Of the consumers and partitions of a subscription, so many are shown.
MOST_SHOWN = 200
_LONGEST_REASON = 500


def consumers(visit: Visit) -> PageAnswer:
    """All subscriptions, and all consumers."""
    after = visit.text("after")
    listed = visit.read(
        ("subscriptions", after),
        lambda c: part_of(subscriptions.list_subscriptions(c), after, "name"),
    )
    members = visit.read("members", _members)
    return visit.show("consumers.html", "Consumers", listed=listed, members=members)


def _members(connection: Any, name: str | None = None) -> tuple[list[Any], int]:
    """Consumers, those with the oldest heartbeat first, and how many there are in all."""
    found = subscriptions.members(connection, name)
    found.sort(key=lambda each: each.heartbeat_at)
    return found[:MOST_SHOWN], len(found)


def subscription(visit: Visit) -> PageAnswer:
    """One subscription: its partitions, its consumers, and a form to pause it."""
    name = visit.needed("name")
    return visit.show(
        "subscription.html",
        name,
        found=visit.read(
            ("subscription", name), lambda c: subscriptions.describe_subscription(c, name)
        ),
        lags=visit.read(("lags", name), lambda c: _lags(c, name)),
        members=visit.read(("members", name), lambda c: _members(c, name)),
        counted=visit.read(("counted", name), lambda c: _counted(c, name)),
    )


def _lags(connection: Any, name: str) -> tuple[list[Any], int]:
    """The partitions that are furthest behind, and how many there are in all."""
    found = subscriptions.lag(connection, name)
    found.sort(key=lambda each: -each.lag_events)
    return found[:MOST_SHOWN], len(found)


def _counted(connection: Any, name: str) -> queue.QueueStatistics | None:
    """The counts of a queue; None for a stream."""
    if subscriptions.describe_subscription(connection, name).mode != "queue":
        return None
    return queue.statistics(connection, name)


def pause(visit: Visit) -> PageAnswer:
    """Hand out nothing more, and record who wants it and why."""
    name, reason = visit.needed("name"), visit.needed("reason")[:_LONGEST_REASON]
    told = f"{reason} ({visit.session.person})"
    visit.change(lambda c: subscriptions.pause(c, name, told))
    return redirect(link("/subscription", name=name))


def resume(visit: Visit) -> PageAnswer:
    """Hand out again."""
    name = visit.needed("name")
    visit.change(lambda c: subscriptions.resume(c, name))
    return redirect(link("/subscription", name=name))


ROUTES = (
    PageRoute("/consumers", consumers),
    PageRoute("/subscription", subscription),
    PageRoute("/pause", pause, is_write=True),
    PageRoute("/resume", resume, is_write=True),
)

"""Subscriptions: the calls of a consumer, policies, dead letters, the inbox; an overview here."""

from __future__ import annotations

from penstock.subscriptions.overview import (
    Lag as Lag,
    LeasedCursor as LeasedCursor,
    Member as Member,
    Removal as Removal,
    Skip as Skip,
    Statistics as Statistics,
    Subscription as Subscription,
    describe_subscription as describe_subscription,
    lag as lag,
    leased_cursors as leased_cursors,
    list_subscriptions as list_subscriptions,
    members as members,
    pause as pause,
    rejected_commits as rejected_commits,
    removals as removals,
    resume as resume,
    skips as skips,
    statistics as statistics,
    take_overs as take_overs,
    unleased_cursors as unleased_cursors,
)

"""Policies: heartbeats, leases, measuring and retries, set once for many subscriptions.

A policy is set for everything, a namespace, a topic or a subscription, always as a whole.  What it
does not name is inherited.  The policy of the subscription comes first, then that of the topic,
that of the namespace, and that for everything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock import database
from penstock.errors import InvalidArgument
from penstock.topics.validation import Range

#: What a policy can be set for; the name of "global" is empty.
SCOPES = ("global", "namespace", "topic", "subscription")
_NO_NUMBER = Range(0, 0)


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """The values that a setting may have: a number in a range, or one of some words."""

    preset: float | str
    range: Range = _NO_NUMBER
    words: tuple[str, ...] = ()
    #: The meaning, for docs/reference/policies.md.
    about: str = ""

    def problem(self, value: object) -> str | None:
        """What has to be given instead; None when the value is valid."""
        if self.words:
            return None if value in self.words else f"use one of {', '.join(self.words)}"
        return self.range.problem(value)

    def read(self, text: str) -> float | str:
        """The value of a text from the database or a command line."""
        if self.words:
            return text
        try:
            return int(text)
        except ValueError:
            pass
        try:
            value = float(text)
        except ValueError:
            return text
        return int(value) if self.range.is_whole and value.is_integer() else value


#: Every setting by the kind of its policy; the database has the same in policy_settings.
SETTINGS: dict[str, dict[str, PolicySetting]] = {
    "heartbeat": {
        "heartbeat_seconds": PolicySetting(
            3, Range(0.001, 28_800), about="How often a consumer says that it is alive."
        ),
        "lease_seconds": PolicySetting(
            10,
            Range(0.003, 86_399),
            about="Its life without a heartbeat; three heartbeats at least, and set with them.",
        ),
        "release_seconds": PolicySetting(
            10,
            Range(0.001, 86_399),
            about="How long a consumer may take to give up a lease that it was asked for.",
        ),
        "target_qps": PolicySetting(
            10, Range(0.1, 10_000), about="Check-ins a second of all consumers together."
        ),
    },
    "keep": {
        "max_lag_seconds": PolicySetting(
            0,
            Range(0, 3_153_600_000),
            about="How long retention waits for a subscription to read a log epoch; 0: for ever.",
        ),
        "dead_letter_seconds": PolicySetting(
            0,
            Range(0, 3_153_600_000),
            about="For how long a dead letter is kept; 0: until it is redriven or dropped.",
        ),
    },
    "lease": {
        "max_consumers": PolicySetting(
            1024,
            Range(1, 100_000, is_whole=True),
            about="How many consumers a subscription may have.",
        )
    },
    "metrics": {
        "refresh_seconds": PolicySetting(
            1, Range(0.1, 3_600), about="How old the statistics may be that check-ins share."
        )
    },
    "retry": {
        "max_attempts": PolicySetting(
            10, Range(1, 1_000, is_whole=True), about="How often an event is tried."
        ),
        "first_backoff_seconds": PolicySetting(
            0.1, Range(0, 86_400), about="The pause after the first attempt; doubled from then on."
        ),
        "longest_backoff_seconds": PolicySetting(
            60, Range(0, 86_400), about="The longest pause; set together with the first."
        ),
        "jitter": PolicySetting(0.5, Range(0, 1), about="The share of a pause that is random."),
        "exhausted": PolicySetting(
            "dead_letter",
            words=("dead_letter", "park_key"),
            about="The step after the last attempt; with park_key later events of the key wait.",
        ),
    },
}
#: Settings that depend on each other: both are set or none.  The number says how many times the
#: first the second must be at least.
_PAIRS = {
    "heartbeat": ("heartbeat_seconds", "lease_seconds", 3),
    "retry": ("first_backoff_seconds", "longest_backoff_seconds", 1),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """What is set for one scope; ``origin`` says whether it came from a file or by hand."""

    kind: str
    scope: str
    name: str
    settings: dict[str, float | str]
    version: int
    origin: str
    updated_at: datetime
    updated_by: str


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """One version that a policy has had."""

    version: int
    settings: dict[str, float | str]
    origin: str
    updated_at: datetime
    updated_by: str


@dataclass(frozen=True, slots=True)
class PolicyValue:
    """A setting that is in force, and the policy that it comes from ("preset": from none)."""

    kind: str
    setting: str
    value: float | str
    source: str
    source_name: str
    version: int
    origin: str | None


@dataclass(frozen=True, slots=True)
class SubscriptionPolicy:
    """All settings in force for a subscription; ``version`` grows when one of them changes."""

    version: int
    heartbeat_seconds: float
    lease_seconds: float
    release_seconds: float
    target_qps: float
    max_consumers: int
    refresh_seconds: float
    max_attempts: int
    first_backoff_seconds: float
    longest_backoff_seconds: float
    jitter: float
    exhausted: str


def check(kind: str, settings: Mapping[str, Any]) -> dict[str, float | str]:
    """The settings of a policy, or InvalidArgument that says what is wrong with them."""
    known = _known(kind)
    if not isinstance(settings, Mapping):
        raise InvalidArgument(
            f"the settings of the policy {kind} are a {type(settings).__name__}",
            hint="give a dict of settings",
        )
    for name, value in settings.items():
        if name not in known:
            raise InvalidArgument(
                f"the policy {kind} has no setting {name!r}", hint=f"it has: {', '.join(known)}"
            )
        problem = known[name].problem(value)
        if problem:
            raise InvalidArgument(f"{name} cannot be {value!r}", hint=problem)
    low, high, times = _PAIRS.get(kind, ("", "", 0))
    if (low in settings) != (high in settings):
        raise InvalidArgument(f"{low} and {high} are set together", hint="give both, or neither")
    if low in settings and settings[high] < times * settings[low]:
        raise InvalidArgument(
            f"{low} {settings[low]} does not fit {high} {settings[high]}",
            hint=f"{high} is at least {times} times {low}",
        )
    return dict(settings)


def set_policy(
    connection: Any,
    kind: str,
    settings: Mapping[str, Any],
    *,
    scope: str = "global",
    name: str = "",
    origin: str = "hand",
) -> int:
    """Set a policy as a whole.  Returns its version, which grows when this changes anything."""
    rows = database.call(
        connection,
        "set_policy",
        kind=kind,
        scope=scope,
        name=name,
        settings=json.dumps(check(kind, settings)),
        origin=origin,
    )
    return int(rows[0][0])


def clear_policy(
    connection: Any, kind: str, *, scope: str = "global", name: str = "", origin: str = "hand"
) -> int:
    """Remove all settings of a policy, so that they are inherited again.  Returns its version."""
    rows = database.call(
        connection, "clear_policy", kind=kind, scope=scope, name=name, origin=origin
    )
    return int(rows[0][0])


def policy_of(connection: Any, *, scope: str = "global", name: str = "") -> list[PolicyValue]:
    """Every setting that is in force for a scope and name, and where it comes from."""
    rows = database.call(connection, "policy_of", scope=scope, name=name)
    return [
        PolicyValue(kind, setting, _known(kind)[setting].read(value), *rest)
        for kind, setting, value, *rest in rows
    ]


def policy_history(
    connection: Any, kind: str, *, scope: str = "global", name: str = ""
) -> list[PolicyVersion]:
    """Every version that a policy has had, the first one first."""
    rows = database.call(connection, "policy_history", kind=kind, scope=scope, name=name)
    return [
        PolicyVersion(version, json.loads(settings), *rest) for version, settings, *rest in rows
    ]


def list_policies(connection: Any) -> list[Policy]:
    """Every policy that sets something and that the login may see."""
    rows = database.call(connection, "list_policies")
    return [
        Policy(kind, scope, name, json.loads(settings), *rest)
        for kind, scope, name, settings, *rest in rows
    ]


def claim_relays(connection: Any, origin: str | None) -> None:
    """Record the policy file whose relays the database follows, by its origin; None: there is none.

    A relay of a file is a subscription, which has no origin of its own.
    """
    database.call(connection, "claim_relays", origin=origin)


def relays_claimed_by(connection: Any) -> str | None:
    """The origin of that file."""
    rows = database.call(connection, "relays_claimed_by")
    return str(rows[0][0]) if rows else None


def subscription_policy(connection: Any, subscription: str) -> SubscriptionPolicy:
    """What is in force for a subscription: one cheap call, to be made with each check-in."""
    rows = database.call(connection, "subscription_policy", subscription=subscription)
    return SubscriptionPolicy(*rows[0])


def _known(kind: str) -> dict[str, PolicySetting]:
    if kind not in SETTINGS:
        raise InvalidArgument(
            f"there is no policy {kind!r}", hint=f"the policies are {', '.join(SETTINGS)}"
        )
    return SETTINGS[kind]

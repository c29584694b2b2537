"""Policy: make the database match the policy file, and show where the two differ."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ops.lateness import queue_names
from ops.policies import relay_groups
from ops.policies.file import FILE, FROM_FILE, HAND, Policies
from ops.policies.settings import RelayPolicy, RetentionPolicy
from ops.policies.values import REFERENCE, said_size
from penstock import subscriptions
from penstock.database import call, config
from penstock.subscriptions import forwarding, policies
from penstock.topics import names

#: What is said where a database does not follow the file that asks for something.
FOLLOWS_ANOTHER = "the database follows another policy file"
#: What is shown for a setting that is not set.
NONE = "none"
#: What a retention policy asks for that the file has taken back: with no target nothing goes.
_TAKEN_BACK = RetentionPolicy(minimum_age_seconds=0, copies=1)
#: What stands before the name of a relay with several sinks.
_GROUP, _RELAY = "relay group ", "relay "
#: A history in a report has so many versions, of so many policies at most.
MOST_VERSIONS = 50


@dataclass(frozen=True, slots=True)
class PolicyDrift:
    """A difference: what the file says, and what the database has.

    ``mendable`` says whether :func:`apply` removes it. It keeps what was set by hand and is not in
    the file, and all that another file has set. ``origin`` says who set what the database has:
    'hand', or 'file' and the name of the file.
    """

    name: str
    setting: str
    wanted: str
    found: str
    mendable: bool = True
    scope: str = "topic"
    origin: str | None = None

    @property
    def subject(self) -> str:
        """The topic, namespace or subscription that it concerns, in words."""
        return f"{self.scope} {self.name}" if self.name else "everything"


@dataclass(frozen=True, slots=True)
class Awaited:
    """What the file names and the database does not have yet; ``create`` is the command for it."""

    scope: str
    name: str
    create: str


@dataclass(frozen=True, slots=True)
class RetentionInForce:
    """The retention policy that the database follows.  ``version`` grows with every change."""

    topic: str
    minimum_age_seconds: int
    copies: int
    version: int
    updated_at: Any
    origin: str
    targets: tuple[str, ...]
    max_bytes: int | None


def retention_in_force(connection: Any) -> dict[str, RetentionInForce]:
    """The retention policies of the database, by topic; not those that the file has taken back."""
    rows = call(connection, "retention_of")
    found = [RetentionInForce(*row) for row in rows]
    found = [dataclasses.replace(each, targets=tuple(each.targets)) for each in found]
    return {
        each.topic: each
        for each in found
        if each.origin == HAND or each.targets or each.copies == 0
    }


@dataclass(frozen=True, slots=True)
class _OwnedChange:
    """What a file may change: what it has set itself, until it is told to take over."""

    origin: str
    follows: bool
    takes_over: bool

    def adopts(self, present: str | None) -> bool:
        """Whether the file owns what it names from now on, where the value is there already."""
        is_other = present is not None and present != self.origin
        if not (is_other and self.follows and self.origin.startswith(FROM_FILE)):
            return False
        return self.takes_over or present in {HAND, FILE}

    def may_change(self, present: str | None, *, is_named: bool) -> bool:
        """Whether the file may set what it names, or take back what it does not name."""
        if present is None or present == HAND:
            return is_named and self.follows
        return self.takes_over or present == self.origin


def follows(connection: Any, wanted: Policies) -> bool:
    """Whether the database follows this file: it has set something there, or no other file has."""
    return not other_files(connection, wanted)


def _claim(connection: Any, wanted: Policies, *, take_over: bool) -> _OwnedChange:
    return _OwnedChange(wanted.origin, take_over or not other_files(connection, wanted), take_over)


def other_files(connection: Any, wanted: Policies) -> list[str]:
    """The names of the policy files that the database follows instead of this one."""
    origins = {each.origin for each in policies.list_policies(connection)}
    origins |= {each.origin for each in retention_in_force(connection).values()}
    claimed = policies.relays_claimed_by(connection)
    origins |= set() if claimed is None else {claimed}
    named = {each.dead_letters_origin for each in subscriptions.list_subscriptions(connection)}
    origins |= {each for each in named if each is not None}
    if wanted.origin in origins:
        return []
    return sorted(each.removeprefix(FROM_FILE) for each in origins - {HAND, FILE})


def drift(connection: Any, wanted: Policies) -> list[PolicyDrift]:
    """Where the database differs from the file, in what both have.  Changes nothing."""
    claim = _claim(connection, wanted, take_over=False)
    return [
        *_keeping(connection, wanted, claim),
        *_settings(connection, wanted, claim),
        *_forwarded(connection, wanted, claim),
    ]


def awaited(connection: Any, wanted: Policies) -> list[Awaited]:
    """What the file names and the database does not have yet.  It is in force once it is there."""
    relays = {relay.subscription for relay in wanted.relays.values()}
    named = {("topic", policy.topic) for policy in wanted.topics.values() if policy.retention}
    named |= {("topic", relay.topic) for relay in wanted.relays.values()}
    named |= {(scope, name) for scope, name, _ in wanted.settings if scope in _EXISTING}
    named |= {("subscription", name) for name in wanted.dead_letters_to}
    named |= {("topic", topic) for topic in wanted.dead_letters_to.values()}
    named -= {("topic", wanted.canary)} | {("subscription", name) for name in relays}
    existing = {scope: _EXISTING[scope](connection) for scope in {scope for scope, _ in named}}
    return [
        Awaited(scope, name, to_database(_CREATE[scope].format(name=shlex.quote(name)), wanted))
        for scope, name in sorted(named)
        if name not in existing[scope]
    ]


def topic_drift(connection: Any, wanted: Policies, topic: str) -> list[PolicyDrift]:
    """The differences in what decides when a topic's events are removed."""
    claim = _claim(connection, wanted, take_over=False)
    return [each for each in _keeping(connection, wanted, claim) if each.name == topic]


def apply(connection: Any, wanted: Policies, *, take_over: bool = False) -> list[PolicyDrift]:
    """Remove every difference that this file may remove.  Returns what it changed.

    A file changes what it has set itself and nobody else's, in a database that follows it.  With
    ``take_over`` the database follows it from now on, and it owns all that other files have set.
    """
    claim = _claim(connection, wanted, take_over=take_over)
    changed = [each for each in _keeping(connection, wanted, claim) if each.mendable]
    for each in changed:
        _keep(connection, wanted, each)
    # Only now, because a relay's subscription may just have been created.
    settings = [each for each in _settings(connection, wanted, claim) if each.mendable]
    for each in settings:
        policies.set_policy(
            connection,
            each.setting,
            wanted.settings.get((each.scope, each.name, each.setting), {}),
            scope=each.scope,
            name=each.name,
            origin=wanted.origin,
        )
    forwarded = [each for each in _forwarded(connection, wanted, claim) if each.mendable]
    for each in forwarded:
        forwarding.set_dead_letters_to(
            connection, each.name, wanted.dead_letters_to.get(each.name), origin=wanted.origin
        )
    _claim_relays(connection, wanted, claim)
    return changed + settings + forwarded


def _claim_relays(connection: Any, wanted: Policies, claim: _OwnedChange) -> None:
    """Own the relays that the file names, or own none any more."""
    present = policies.relays_claimed_by(connection)
    said = wanted.origin if wanted.relays and wanted.origin != FILE else None
    is_ours = present in {None, wanted.origin} or claim.takes_over
    if claim.follows and is_ours and said != present:
        policies.claim_relays(connection, said)


#: What knows the databases of the policy file by name.  Other commands go by the environment.
_BY_NAME = ("penstock policy", "penstock backfill", "penstock relay")


def to_database(command: str, wanted: Policies) -> str:
    """The command line that does it to this database, which the policy file may have by name."""
    line, comment, more = command.partition("  #")
    if not wanted.database or not line.startswith("penstock "):
        return command
    if line.startswith(_BY_NAME):
        return f"{line} --database {wanted.database}{comment}{more}"
    return f"{config.URL_VARIABLE}={in_shell(wanted.url)} {command}"


def in_shell(value: str) -> str:
    """A value of the policy file as a shell takes it; what is ``${NAME}`` is a variable there."""
    reference = REFERENCE.fullmatch(value)
    return f'"${reference[1]}"' if reference else shlex.quote(value)


def set_by_hand(connection: Any) -> list[policies.Policy]:
    """The policies whose present version was set by hand, the newest first."""
    found = [each for each in policies.list_policies(connection) if each.origin == HAND]
    return sorted(found, key=lambda each: each.updated_at, reverse=True)


def newest_versions(
    connection: Any, most: int = MOST_VERSIONS
) -> list[tuple[policies.Policy, policies.PolicyVersion]]:
    """Who set what, the newest first: versions of the policies that were changed last."""
    present = sorted(
        policies.list_policies(connection), key=lambda each: each.updated_at, reverse=True
    )
    found = [
        (each, version)
        for each in present[:most]
        for version in policies.policy_history(
            connection, each.kind, scope=each.scope, name=each.name
        )
    ]
    return sorted(found, key=lambda pair: pair[1].updated_at, reverse=True)[:most]


def _keep(connection: Any, wanted: Policies, drift: PolicyDrift) -> None:
    if drift.setting.startswith(_GROUP):
        group = wanted.relay_groups[drift.setting.removeprefix(_GROUP)]
        relay_groups.ensure_group(connection, group)
        return
    if drift.setting != "retention":
        relay = wanted.relays[drift.setting.removeprefix(_RELAY)]
        relay_groups.ensure_subscribed(connection, relay, wanted.relay_groups)
        return
    policy = wanted.of_topic(drift.name)
    retention = policy.retention or _TAKEN_BACK
    call(
        connection,
        "set_retention",
        topic=drift.name,
        minimum_age_seconds=retention.minimum_age_seconds,
        copies=retention.copies,
        origin=wanted.origin,
        targets=sorted(policy.archive) if policy.retention else [],
        max_bytes=retention.max_bytes,
    )


def _keeping(connection: Any, wanted: Policies, claim: _OwnedChange) -> list[PolicyDrift]:
    """Retention, and the relays that hold events back."""
    existing = {each.address for each in names.list_topics(connection)}
    found = [*_retention(connection, wanted, claim), *_relays(connection, wanted, claim)]
    return [each for each in found if each.name in existing]


def _retention(connection: Any, wanted: Policies, claim: _OwnedChange) -> list[PolicyDrift]:
    in_force = retention_in_force(connection)
    found = []
    for topic in sorted({*wanted.topics, *in_force}):
        policy, present = wanted.of_topic(topic), in_force.get(topic)
        said = policy.retention
        wanted_words = _words(said, policy.archive)
        found_words = _words(present, present.targets if present else ())
        origin, is_named = present.origin if present else None, said is not None
        if wanted_words == found_words:
            mendable = is_named and claim.adopts(origin)
        else:
            mendable = claim.may_change(origin, is_named=is_named)
        if wanted_words != found_words or mendable:
            words = (wanted_words, found_words, mendable)
            found.append(PolicyDrift(topic, "retention", *words, origin=origin))
    return found


def _relays(connection: Any, wanted: Policies, claim: _OwnedChange) -> list[PolicyDrift]:
    """Relays whose subscription is missing, or of the other mode, which it keeps.

    Until it exists, it holds back no event.
    """
    if not wanted.relays:
        return []
    present = {(each.subscription, each.topic) for each in subscriptions.lag(connection)}
    queues = queue_names(connection)
    missing = []
    for relay in wanted.relays.values():
        is_there = (relay.subscription, relay.topic) in present
        is_queue = relay.subscription in queues
        if relay.group or (is_there and is_queue == bool(relay.order)):
            continue
        found = NONE if not is_there else "a queue" if is_queue else "a stream"
        mendable = claim.follows and not is_there
        setting = f"{_RELAY}{relay.name}"
        missing.append(PolicyDrift(relay.topic, setting, relay.subscription, found, mendable))
    groups = relay_groups.differing(connection, wanted.relay_groups)
    return missing + [
        PolicyDrift(group.topic, f"{_GROUP}{group.name}", said, found or NONE, claim.follows)
        for group, said, found in groups
    ]


def is_subscribed(connection: Any, relay: RelayPolicy) -> bool:
    """Whether the relay has something to read, also where its topic was renamed.

    The daemon goes by the subscription alone, and so does a run: else events would wait, and the
    sensor would ask for one run after the other that does nothing.
    """
    return bool(subscriptions.lag(connection, relay.subscription))


def _settings(connection: Any, wanted: Policies, claim: _OwnedChange) -> Iterator[PolicyDrift]:
    """Policies of heartbeats, leases, metrics and retries."""
    in_force = {(p.scope, p.name, p.kind): p for p in policies.list_policies(connection)}
    # For each policy that differs, whether the file may change it; also for what it would own.
    differing: dict[tuple[str, str, str], bool] = {}
    for key in sorted({*wanted.settings, *in_force}):
        said, present = wanted.settings.get(key), in_force.get(key)
        origin = present.origin if present else None
        if said != (present.settings if present else None):
            differing[key] = claim.may_change(origin, is_named=said is not None)
        elif claim.adopts(origin):
            differing[key] = True
    existing = {
        scope: _EXISTING[scope](connection)
        for scope in {scope for scope, _, _ in differing} & _EXISTING.keys()
    }
    for (scope, name, kind), mendable in differing.items():
        if scope in existing and name not in existing[scope]:
            continue
        said = wanted.settings.get((scope, name, kind))
        present = in_force.get((scope, name, kind))
        found = _listed(present.settings if present else None)
        origin = present.origin if present else None
        yield PolicyDrift(name, kind, _listed(said), found, mendable, scope, origin)


def _forwarded(connection: Any, wanted: Policies, claim: _OwnedChange) -> Iterator[PolicyDrift]:
    """Where the dead letters of subscriptions go on to."""
    present = {each.name: each for each in subscriptions.list_subscriptions(connection)}
    topics = {each.address for each in names.list_topics(connection)}
    set_in_database = {name for name, each in present.items() if each.dead_letters_origin}
    for name in sorted({*wanted.dead_letters_to, *set_in_database} & present.keys()):
        said, origin = wanted.dead_letters_to.get(name), present[name].dead_letters_origin
        if said is not None and said not in topics:
            continue
        found = present[name].dead_letters_to
        if origin is not None and found is None:
            found = "a topic that this login may not see"
        problem = present[name].dead_letters_problem if said is not None else None
        if said != found or problem:
            mendable = claim.may_change(origin, is_named=said is not None)
        elif claim.adopts(origin):
            mendable = True
        else:
            continue
        found = f"{found}, but {problem}" if problem else found
        yield PolicyDrift(
            name, "dead_letters_to", said or NONE, found or NONE, mendable, "subscription", origin
        )


_EXISTING: dict[str, Callable[[Any], set[str]]] = {
    "namespace": lambda own: {each.path for each in names.list_namespaces(own)},
    "topic": lambda own: {each.address for each in names.list_topics(own)},
    "subscription": lambda own: {each.subscription for each in subscriptions.lag(own)},
}


_CREATE = {
    "namespace": "penstock namespace create {name} --parents",
    "topic": "penstock topic create {name} --create-namespaces",
    "subscription": "penstock subscription create {name} --topic TOPIC",
}


def _listed(settings: Mapping[str, Any] | None) -> str:
    if settings is None:
        return NONE
    return ", ".join(f"{name} {settings[name]}" for name in sorted(settings))


def _words(policy: RetentionPolicy | RetentionInForce | None, targets: Iterable[str]) -> str:
    if policy is None:
        return NONE
    limit = f", at most {said_size(policy.max_bytes)}" if policy.max_bytes else ""
    if policy.copies == 0:
        return f"{policy.minimum_age_seconds} s, without a copy{limit}"
    named = ", ".join(sorted(targets)) or "no target"
    return f"{policy.minimum_age_seconds} s, {policy.copies} copies on {named}{limit}"

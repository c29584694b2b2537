"""The policy file, read and checked: what is kept, sealed, archived, relayed and set.

Every fault is a ConfigurationError that names the place in the file. Nothing is guessed, and an
unknown setting is refused: a misspelt retention would otherwise silently keep everything or
nothing.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.policies import yaml_file
from ops.seal import MAX_EVENTS
from penstock.archive.targets import Target
from penstock.errors import ConfigurationError, InvalidArgument, InvalidName
from penstock.subscriptions import policies
from penstock.topics import validation

log = logging.getLogger(__name__)

VARIABLE = "PENSTOCK_POLICIES"

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,12})\s*([smhd])")
_REFERENCE = re.compile(r"\$\{(\w+)\}")
_OF_TOPICS = ("owner", "seal", "archive", "retention")
#: What an entry of each section is, for sections whose entries may set policies.
_SECTIONS = {"namespaces": "namespace", "topics": "topic", "subscriptions": "subscription"}
#: `archive: none`: retention removes events without a copy. It has to be said; no entry keeps them.
_NO_ARCHIVE = "none"
#: What an S3-compatible store may need, and what of it never stands in the file.
_SECRETS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_STORE_OPTIONS = (
    *_SECRETS, "aws_region", "aws_endpoint_url", "aws_virtual_hosted_style_request", "allow_http"
)  # fmt: skip
_OWNER = re.compile(r"team:[A-Za-z0-9_.-]+|[^@\s]+@[^@\s]+\.[^@\s]+")


@dataclass(frozen=True, slots=True)
class SealPolicy:
    """When a log epoch is cut: at so many events, or at so great an age."""

    max_events: int = MAX_EVENTS
    max_age_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How old events must be, and how many verified copies they need, before they are removed.

    No copies: the topic's ``archive: none`` says that they go without one.
    """

    minimum_age_seconds: int
    copies: int = 1


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """What happens to the events of one topic.  Without ``retention`` nothing is ever removed."""

    topic: str
    owner: str | None = None
    seal: SealPolicy | None = None
    archive: tuple[str, ...] = ()
    retention: RetentionPolicy | None = None


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """A subscription of a topic whose consumer is a sink."""

    name: str
    topic: str
    subscription: str
    sink: str


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """A place for archives, and what an object store needs: variables are not resolved yet."""

    uri: str
    options: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """How late each part of the work may be, in seconds."""

    unsequenced: int = 15
    relay_lag: int = 30
    consumer_lag: int = 300


@dataclass(frozen=True, slots=True)
class Policies:
    """The whole file."""

    folder: Path
    topics: dict[str, TopicPolicy] = field(default_factory=dict)
    relays: dict[str, RelayPolicy] = field(default_factory=dict)
    targets: dict[str, TargetSettings] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    #: What the policies set, by scope, name and kind.
    settings: dict[tuple[str, str, str], dict[str, float | str]] = field(default_factory=dict)

    def of_topic(self, topic: str) -> TopicPolicy:
        """The policy of a topic.  A topic that the file does not name is only kept."""
        return self.topics.get(topic, TopicPolicy(topic))

    def relays_of(self, topic: str) -> list[RelayPolicy]:
        """The relays that read a topic."""
        return [relay for relay in self.relays.values() if relay.topic == topic]

    def target(self, name: str, environ: Mapping[str, str] | None = None) -> Target:
        """An archive target by its name, with its folder made absolute."""
        if name not in self.targets:
            raise ConfigurationError(
                f"there is no archive target {name!r}",
                hint=f"the policy file has: {', '.join(self.targets) or 'none'}",
            )
        given = self.targets[name]
        uri = _expand(given.uri, f"targets.{name}", environ)
        options = {
            option: _expand(value, f"targets.{name}.options.{option}", environ)
            for option, value in given.options.items()
        }
        place = uri if "://" in uri else str(self.folder / uri)
        return Target(name, place, tuple(sorted(options.items())))

    def sink_address(self, relay: RelayPolicy, environ: Mapping[str, str] | None = None) -> str:
        """The address of a relay's sink, with a local folder made absolute."""
        address = _expand(relay.sink, f"relays.{relay.name}.sink", environ)
        scheme, _, path = address.partition(":")
        if scheme == "jsonl" and not path.startswith("/"):
            return f"jsonl:{self.folder / path}"
        return address


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    """PENSTOCK_POLICIES, else ``policies.yaml`` at the root of the checkout."""
    environ = os.environ if environ is None else environ
    given = environ.get(VARIABLE)
    return Path(given) if given else Path(__file__).resolve().parents[2] / "policies.yaml"


def load(path: Path | str | None = None) -> Policies:
    """Read and check a policy file."""
    path = default_path() if path is None else Path(path)
    hint = f"create it, or name another one with {VARIABLE}"
    return parse(yaml_file.read(path, "the policy file", hint), path)


def known_targets(name: str | None) -> list[Target]:
    """The archive target of a name; all of them for None: what the command `penstock fetch` asks.

    Of all, those are left out whose place cannot be resolved now, with a warning.
    """
    if name is None and VARIABLE not in os.environ and not default_path().exists():
        return []
    policies = load()
    if name is not None:
        return [policies.target(name)]
    found = []
    for each in policies.targets:
        try:
            found.append(policies.target(each))
        except ConfigurationError as error:
            log.warning("the archive target %s is left out: %s", each, error)
    return found


def parse(text: str, path: Path) -> Policies:
    """The policies in the text of a file.  ``path`` is for messages and relative folders."""
    content = yaml_file.parse(text, path.name)
    try:
        return _policies(content or {}, path.absolute().parent)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path.name}: {error.message}", hint=error.hint) from None


def _policies(content: Any, folder: Path) -> Policies:
    known = ("targets", "topics", "relays", "limits", "global", "namespaces", "subscriptions")
    top = _section(content, "the file", known)
    targets = {name: _target(name, value) for name, value in _entries(top, "targets").items()}
    topics = {name: _topic(name, value) for name, value in _entries(top, "topics").items()}
    relays = {name: _relay(name, value) for name, value in _entries(top, "relays").items()}
    _check_targets(topics.values(), targets)
    _check_subscriptions(relays.values())
    limits = _limits(top.get("limits") or {})
    return Policies(folder, topics, relays, targets, limits, _settings(top))


def _settings(top: Mapping[str, Any]) -> dict[tuple[str, str, str], dict[str, float | str]]:
    """Every policy that the file sets, for everything or in an entry of a section."""
    found = {}
    entries = [("global", "", "global", top.get("global"))]
    for section, scope in _SECTIONS.items():
        for name, value in _entries(top, section).items():
            where = f"{section}.{name}"
            _name(name, scope, where)
            entries.append((scope, name, where, value))
    for scope, name, where, value in entries:
        known = (*policies.SETTINGS, *(_OF_TOPICS if scope == "topic" else ()))
        given = _section(value or {}, where, known)
        for kind in policies.SETTINGS:
            if given.get(kind):
                found[scope, name, kind] = _checked(kind, given[kind], f"{where}.{kind}")
    return found


def _checked(kind: str, settings: Any, where: str) -> dict[str, float | str]:
    try:
        return policies.check(kind, settings)
    except InvalidArgument as error:
        raise ConfigurationError(f"{where}: {error.message}", hint=error.hint) from None


def _target(name: str, value: Any) -> TargetSettings:
    where = f"targets.{name}"
    given = (
        _section(value, where, ("uri", "options")) if isinstance(value, dict) else {"uri": value}
    )
    uri = _text(given.get("uri"), where)
    options = _section(given.get("options") or {}, f"{where}.options", _STORE_OPTIONS)
    for option in options:
        _text(options[option], f"{where}.options.{option}")
        if option in _SECRETS and not _REFERENCE.fullmatch(options[option]):
            # The value is not repeated: it may be the secret itself.
            raise ConfigurationError(
                f"{where}.options.{option} is written into the file",
                hint="write ${NAME}, and set the environment variable NAME",
            )
    if not _REFERENCE.fullmatch(uri):
        Target(name, uri, tuple(options.items()))  # refuses a bad name or place
    return TargetSettings(uri, dict(options))


def _topic(name: str, value: Any) -> TopicPolicy:
    where = f"topics.{name}"
    _name(name, "topic", where)
    given = _section(value or {}, where, (*_OF_TOPICS, *policies.SETTINGS))
    owner = given.get("owner")
    if owner is not None and not _OWNER.fullmatch(_text(owner, f"{where}.owner")):
        raise ConfigurationError(
            f"{where}.owner is {owner!r}", hint="write team:name or an e-mail address"
        )
    archive = given.get("archive") or []
    is_none = archive == _NO_ARCHIVE
    if not is_none and not isinstance(archive, list):
        raise ConfigurationError(
            f"{where}.archive is not a list", hint="write archive: [target], or archive: none"
        )
    return TopicPolicy(
        name,
        owner,
        _seal(given.get("seal"), f"{where}.seal"),
        () if is_none else tuple(_text(each, f"{where}.archive") for each in archive),
        _retention(given.get("retention"), f"{where}.retention", is_archived=not is_none),
    )


def _seal(value: Any, where: str) -> SealPolicy | None:
    if value is None:
        return None
    given = _section(value, where, ("max_events", "max_age"))
    max_age = given.get("max_age")
    return SealPolicy(
        _count(given.get("max_events", MAX_EVENTS), f"{where}.max_events", 1, 1_000_000),
        None if max_age is None else _seconds(max_age, f"{where}.max_age"),
    )


def _retention(value: Any, where: str, *, is_archived: bool) -> RetentionPolicy | None:
    if value is None:
        return None
    given = _section(value, where, ("minimum_age", "copies"))
    if "minimum_age" not in given:
        raise ConfigurationError(f"{where} has no minimum_age", hint="write minimum_age: 7d")
    if "copies" in given and not is_archived:
        raise ConfigurationError(
            f"{where} asks for copies of a topic with archive: none",
            hint="leave copies out, or name targets: archive: [target]",
        )
    copies = _count(given.get("copies", 1), f"{where}.copies", 1, 100) if is_archived else 0
    return RetentionPolicy(_seconds(given["minimum_age"], f"{where}.minimum_age"), copies)


def _relay(name: str, value: Any) -> RelayPolicy:
    where = f"relays.{name}"
    given = _section(value, where, ("topic", "subscription", "sink"))
    for required in ("topic", "sink"):
        if required not in given:
            raise ConfigurationError(f"{where} has no {required}", hint="give topic and sink")
    topic = _text(given["topic"], f"{where}.topic")
    _name(topic, "topic", f"{where}.topic")
    subscription = _text(given.get("subscription", name), f"{where}.subscription")
    return RelayPolicy(name, topic, subscription, _text(given["sink"], f"{where}.sink"))


def _limits(value: Any) -> Limits:
    names = ("unsequenced", "relay_lag", "consumer_lag")
    given = _section(value, "limits", names)
    return Limits(**{name: _seconds(given[name], f"limits.{name}") for name in given})


def _check_targets(topics: Iterable[TopicPolicy], targets: Mapping[str, object]) -> None:
    for policy in topics:
        where = f"topics.{policy.topic}"
        for name in policy.archive:
            if name not in targets:
                raise ConfigurationError(
                    f"{where}.archive names the target {name!r}, which is not among the targets",
                    hint=f"the file has: {', '.join(targets) or 'none'}",
                )
        if len(set(policy.archive)) < len(policy.archive):
            raise ConfigurationError(f"{where}.archive names a target twice")
        copies = policy.retention.copies if policy.retention else 0
        if copies > len(policy.archive):
            raise ConfigurationError(
                f"{where}.retention wants {copies} copies, but {where}.archive has "
                f"{len(policy.archive)} targets: nothing could ever be removed",
                hint="name more targets, or fewer copies",
            )


def _check_subscriptions(relays: Iterable[RelayPolicy]) -> None:
    seen: dict[str, str] = {}
    for relay in relays:
        other = seen.setdefault(relay.subscription, relay.name)
        if other != relay.name:
            raise ConfigurationError(
                f"the relays {other} and {relay.name} have the subscription "
                f"{relay.subscription!r} both: each event would reach one of them only",
                hint="give each relay a subscription of its own",
            )


def _entries(top: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A section whose keys are names."""
    value = top.get(name) or {}
    if not isinstance(value, dict):
        raise ConfigurationError(f"{name} is not a table", hint="write one `name: ...` a line")
    return {_text(key, name): entry for key, entry in value.items()}


def _section(value: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    """A section whose keys are settings."""
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} is not a table", hint=f"it may hold: {', '.join(known)}")
    unknown = sorted(str(key) for key in value if key not in known)
    if unknown:
        raise ConfigurationError(
            f"{where} has the unknown setting {unknown[0]!r}", hint=f"known: {', '.join(known)}"
        )
    return value


def _name(name: str, scope: str, where: str) -> None:
    try:
        if scope == "subscription":
            validation.name(name, scope)
        else:
            (validation.topic if scope == "topic" else validation.namespace)(name)
    except InvalidName as error:
        raise ConfigurationError(f"{where}: {error.message}", hint=error.hint) from None


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{where} is {value!r}", hint="write text; quote what is not")
    return value


def _count(value: Any, where: str, lowest: int, highest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise ConfigurationError(
            f"{where} is {value!r}", hint=f"write a whole number from {lowest} to {highest}"
        )
    return value


def _seconds(value: Any, where: str) -> int:
    """A duration: whole seconds, or ``90s``, ``15m``, ``2h``, ``7d``."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ConfigurationError(f"{where} is {value!r}", hint="write 90s, 15m, 2h or 7d")
    return int(match[1]) * _UNITS[match[2]]


def _expand(value: str, where: str, environ: Mapping[str, str] | None) -> str:
    """The value itself, or the value of the environment variable that it names."""
    environ = os.environ if environ is None else environ
    reference = _REFERENCE.fullmatch(value)
    if reference is None:
        return value
    found = environ.get(reference[1], "").strip()
    if not found:
        raise ConfigurationError(
            f"{where} is taken from {reference[1]}, which is not set",
            hint=f"set the environment variable {reference[1]}, or change the policy file",
        )
    return found

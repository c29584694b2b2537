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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ops.archive.placement import COPY_SECONDS, MAX_WEIGHT, Placement
from ops.policies import checks, values, yaml_file
from ops.policies.settings import (
    HealthLimits,
    RelayPolicy,
    RetentionPolicy,
    SealPolicy,
    TargetSettings,
    TopicPolicy,
)
from ops.seal import MAX_EVENTS
from ops.sinks.address import require_no_secret
from penstock.archive.targets import Target
from penstock.database import address, config
from penstock.errors import ConfigurationError, InvalidArgument
from penstock.subscriptions import policies

log = logging.getLogger(__name__)

VARIABLE = "PENSTOCK_POLICIES"

#: Who has set a policy: a hand, a file that was not known by name, or this and the file's name.
HAND, FILE, FROM_FILE = "hand", "file", "file "

_OF_TOPICS = ("owner", "seal", "archive", "retention")
#: What the file says of each database for itself.
_OF_DATABASES = (
    "topics", "relays", "limits", "global", "namespaces", "subscriptions", "canary"
)  # fmt: skip
#: A folder of this name in a target is no topic's: those have a dash.
#: Nor has it two underscores together: they separate it from the names of its jobs and ops.
_DATABASE = re.compile(r"(?=.{1,63}$)[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
#: What an entry of each section is, for sections whose entries may set policies.
_SECTIONS = {"namespaces": "namespace", "topics": "topic", "subscriptions": "subscription"}
#: `archive: none`: retention removes events without a copy. It has to be said; no entry keeps them.
_NO_ARCHIVE = "none"
#: What an S3-compatible store may need, and what of it never stands in the file.
_SECRETS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_STORE_OPTIONS = (
    *_SECRETS, "aws_region", "aws_endpoint_url", "aws_virtual_hosted_style_request", "allow_http"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Policies:
    """What the file says for one database.

    Without a name it is the database that the environment names; ``others`` are those of the
    section ``databases``, by name.
    """

    folder: Path
    #: Which file it is: the name that it gives itself, else its place.
    file: str = ""
    topics: dict[str, TopicPolicy] = field(default_factory=dict)
    relays: dict[str, RelayPolicy] = field(default_factory=dict)
    targets: dict[str, TargetSettings] = field(default_factory=dict)
    limits: HealthLimits = field(default_factory=HealthLimits)
    #: The topic through which a test event is sent; empty: none is.
    canary: str = ""
    #: What the policies set, by scope, name and kind.
    settings: dict[tuple[str, str, str], dict[str, float | str]] = field(default_factory=dict)
    database: str = ""
    #: Its address; a variable is not resolved yet.
    url: str = field(default="", repr=False)
    others: dict[str, Policies] = field(default_factory=dict)
    #: The addresses of all databases of the section by their entry, as the file has them.
    urls: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def origin(self) -> str:
        """How the database says that this file has set a policy."""
        return f"{FROM_FILE}{self.file}" if self.file else FILE

    @property
    def entry(self) -> str:
        """Where its address is written."""
        return f"databases.{self.database}.url" if self.database else config.URL_VARIABLE

    @property
    def databases(self) -> tuple[str, ...]:
        """The names in the section ``databases``."""
        return tuple(self.others)

    def of_database(self, name: str) -> Policies:
        """What the file says for one of its databases; '' is the one of the environment."""
        if name == self.database:
            return self
        if name not in self.others:
            raise ConfigurationError(
                f"there is no database {name!r}",
                hint=f"the policy file has: {', '.join(self.others) or 'none'}",
            )
        return self.others[name]

    def database_url(self, environ: Mapping[str, str] | None = None) -> str:
        """The address of its database, with the password: for connections, never for logs."""
        is_own = not self.database
        found = (
            config.database_url(environ) if is_own else values.expand(self.url, self.entry, environ)
        )
        checks.require_own(found, self.entry, self.urls, environ)
        if not is_own:
            config.stands_in(found, f"{self.entry} in the policy file")
        return found

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
        uri = values.expand(given.uri, f"targets.{name}", environ)
        options = {
            option: values.expand(value, f"targets.{name}.options.{option}", environ)
            for option, value in given.options.items()
        }
        place = uri if "://" in uri else str(self.folder / uri)
        if self.database:  # a target belongs to one installation
            place = f"{place.rstrip('/')}/{self.database}"
        return Target(name, place, tuple(sorted(options.items())))

    def usable(self, wanted: Iterable[str]) -> tuple[list[Target], dict[str, str]]:
        """The targets that can be named now, and why others cannot: one does not stop the rest."""
        found: list[Target] = []
        failed: dict[str, str] = {}
        for name in wanted:
            try:
                found.append(self.target(name))
            except ConfigurationError as error:
                failed[name] = str(error)
        return found, failed

    def usable_targets(self) -> list[Target]:
        """All targets, without those whose place cannot be resolved now."""
        found, failed = self.usable(self.targets)
        for name, why in failed.items():
            log.warning("the archive target %s is left out: %s", name, why)
        return found

    def sink_address(self, relay: RelayPolicy, environ: Mapping[str, str] | None = None) -> str:
        """The address of a relay's sink, with a local folder made absolute."""
        address = values.expand(relay.sink, f"relays.{relay.name}.sink", environ)
        scheme, _, path = address.partition(":")
        if scheme == "jsonl" and not path.startswith("/"):
            return f"jsonl:{self.folder / path}"
        return address


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    """PENSTOCK_POLICIES, else ``policies.yaml`` at the root of the checkout."""
    environ = os.environ if environ is None else environ
    given = environ.get(VARIABLE)
    return Path(given) if given else Path(__file__).resolve().parents[2] / "policies.yaml"


def is_there() -> bool:
    """Whether a policy file is named, or stands at the root of the checkout."""
    return VARIABLE in os.environ or default_path().exists()


def load(path: Path | str | None = None) -> Policies:
    """Read and check a policy file."""
    path = default_path() if path is None else Path(path)
    hint = f"create it, or name another one with {VARIABLE}"
    return parse(yaml_file.read(path, "the policy file", hint), path)


def known_targets(name: str | None) -> list[Target]:
    """The archive target of a name; all of them for None: what the command `penstock fetch` asks.

    Of all, those are left out whose place cannot be resolved now, with a warning.
    """
    if name is None and not is_there():
        return []
    policies = load()
    return policies.usable_targets() if name is None else [policies.target(name)]


def parse(text: str, path: Path) -> Policies:
    """The policies in the text of a file.  ``path`` is for messages and relative folders."""
    content = yaml_file.parse(text, path.name)
    try:
        return _policies(content or {}, path.absolute())
    except ConfigurationError as error:
        raise ConfigurationError(f"{path.name}: {error.message}", hint=error.hint) from None


def _policies(content: Any, path: Path) -> Policies:
    known = ("targets", *_OF_DATABASES, "databases", "name")
    top = values.section(content, "the file", known)
    folder, file = path.parent, values.file_name(top.get("name"), path)
    targets = {name: _target(name, value) for name, value in values.entries(top, "targets").items()}
    found = _of_database(top, Policies(folder, file, targets=targets))
    others: dict[str, Policies] = {}
    for name, value in values.entries(top, "databases").items():
        where = f"databases.{name}"
        if not _DATABASE.fullmatch(name):
            raise ConfigurationError(
                f"{where} has a name that is not allowed",
                hint="use up to 63 lower-case letters and digits, a letter first, with single "
                "underscores between them",
            )
        given = values.section(value, where, ("url", *_OF_DATABASES))
        url = _url(given.get("url"), f"{where}.url")
        if url in {each.url for each in others.values()}:
            raise ConfigurationError(f"{where}.url is that of another database too")
        base = Policies(folder, file, targets=targets, limits=found.limits, database=name, url=url)
        try:
            others[name] = _of_database(given, base)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error.message}", hint=error.hint) from None
    checks.require_apart({"": found, **{f"databases.{name}.": p for name, p in others.items()}})
    urls = {each.entry: each.url for each in others.values()}
    of_all = {name: replace(each, urls=urls) for name, each in others.items()}
    return replace(found, urls=urls, others=of_all)


def _of_database(top: Mapping[str, Any], base: Policies) -> Policies:
    """What the file says for one database; ``base`` has what all databases share."""
    entries = values.entries(top, "topics").items()
    topics = {name: _topic(name, value, base.targets) for name, value in entries}
    relays = {name: _relay(name, value) for name, value in values.entries(top, "relays").items()}
    checks.require_own_subscriptions(relays.values())
    limits = _limits(top.get("limits") or {}, base.limits)
    canary = top.get("canary") or ""
    if canary:
        values.require_name(values.text(canary, "canary"), "topic", "canary")
    return replace(
        base, topics=topics, relays=relays, limits=limits, canary=canary, settings=_settings(top)
    )


def _url(value: Any, where: str) -> str:
    """An address without a password, or the variable that holds one; it is never repeated."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{where} is missing", hint="write ${NAME}")
    if values.REFERENCE.fullmatch(value):
        return value
    try:
        config.dialect_of_url(value)
        is_secret = "passw" in value.lower() or ("://" in value and address.read(value).password)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error.message}", hint=error.hint) from None
    if is_secret:
        raise ConfigurationError(
            f"{where} has a password that is written into the file",
            hint="write ${NAME}, and set the environment variable NAME",
        )
    return value


def _settings(top: Mapping[str, Any]) -> dict[tuple[str, str, str], dict[str, float | str]]:
    """Every policy that the file sets, for everything or in an entry of a section."""
    found = {}
    entries = [("global", "", "global", top.get("global"))]
    for section, scope in _SECTIONS.items():
        for name, value in values.entries(top, section).items():
            where = f"{section}.{name}"
            values.require_name(name, scope, where)
            entries.append((scope, name, where, value))
    for scope, name, where, value in entries:
        known = (*policies.SETTINGS, *(_OF_TOPICS if scope == "topic" else ()))
        given = values.section(value or {}, where, known)
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
        values.section(value, where, ("uri", "options", "weight"))
        if isinstance(value, dict)
        else {"uri": value}
    )
    uri = values.text(given.get("uri"), where)
    options = values.section(given.get("options") or {}, f"{where}.options", _STORE_OPTIONS)
    for option in options:
        given_option = values.text(options[option], f"{where}.options.{option}")
        is_secret = option in _SECRETS or "@" in given_option  # a login in the endpoint
        if is_secret and not values.REFERENCE.fullmatch(given_option):
            # The value is not repeated: it may be the secret itself.
            raise ConfigurationError(
                f"{where}.options.{option} is written into the file",
                hint="write ${NAME}, and set the environment variable NAME",
            )
    if not values.REFERENCE.fullmatch(uri):
        Target(name, uri, tuple(options.items()))  # refuses a bad name or place
    weight = values.count(given.get("weight", 1), f"{where}.weight", 1, MAX_WEIGHT)
    return TargetSettings(uri, dict(options), weight)


def _topic(name: str, value: Any, targets: Mapping[str, TargetSettings]) -> TopicPolicy:
    where = f"topics.{name}"
    values.require_name(name, "topic", where)
    given = values.section(value or {}, where, (*_OF_TOPICS, *policies.SETTINGS))
    owner = values.owner(given.get("owner"), f"{where}.owner")
    archive = given.get("archive") or []
    is_none = archive == _NO_ARCHIVE
    placement = None if is_none or not archive else _placement(archive, f"{where}.archive", targets)
    retention = _retention(given.get("retention"), f"{where}.retention", is_archived=not is_none)
    _check_copies(retention, placement, where)
    return TopicPolicy(
        name,
        owner,
        _seal(given.get("seal"), f"{where}.seal"),
        tuple(placement.targets) if placement else (),
        retention,
        placement,
    )


def _placement(value: Any, where: str, targets: Mapping[str, TargetSettings]) -> Placement:
    """A list of targets, with a copy on each; or how many copies lie on them."""
    if isinstance(value, list):
        value = {"targets": value}
    elif not isinstance(value, dict):
        raise ConfigurationError(
            f"{where} is not a list", hint="write archive: [target], or archive: none"
        )
    given = values.section(value, where, ("targets", "copies", "ack_quorum", "copy_timeout"))
    listed = given.get("targets")
    if not isinstance(listed, list):
        raise ConfigurationError(f"{where}.targets is not a list", hint="write targets: [a, b, c]")
    names = [values.text(each, where) for each in listed]
    checks.require_targets(names, targets, where)
    copies = values.count(given.get("copies", len(names)), f"{where}.copies", 1, 100)
    quorum = values.count(given.get("ack_quorum", copies), f"{where}.ack_quorum", 1, 100)
    timeout = values.seconds(given.get("copy_timeout", COPY_SECONDS), f"{where}.copy_timeout")
    try:
        return Placement({name: targets[name].weight for name in names}, copies, quorum, timeout)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error.message}", hint=error.hint) from None


def _seal(value: Any, where: str) -> SealPolicy | None:
    if value is None:
        return None
    given = values.section(value, where, ("max_events", "max_age"))
    max_age = given.get("max_age")
    return SealPolicy(
        values.count(given.get("max_events", MAX_EVENTS), f"{where}.max_events", 1, 1_000_000),
        None if max_age is None else values.seconds(max_age, f"{where}.max_age"),
    )


def _retention(value: Any, where: str, *, is_archived: bool) -> RetentionPolicy | None:
    if value is None:
        return None
    given = values.section(value, where, ("minimum_age", "copies", "max_bytes"))
    if "minimum_age" not in given:
        raise ConfigurationError(f"{where} has no minimum_age", hint="write minimum_age: 7d")
    if "copies" in given and not is_archived:
        raise ConfigurationError(
            f"{where} asks for copies of a topic with archive: none",
            hint="leave copies out, or name targets: archive: [target]",
        )
    copies = values.count(given.get("copies", 1), f"{where}.copies", 1, 100) if is_archived else 0
    max_bytes = given.get("max_bytes")
    return RetentionPolicy(
        values.seconds(given["minimum_age"], f"{where}.minimum_age"),
        copies,
        None if max_bytes is None else values.size(max_bytes, f"{where}.max_bytes"),
    )


def _relay(name: str, value: Any) -> RelayPolicy:
    where = f"relays.{name}"
    given = values.section(value, where, ("topic", "subscription", "sink"))
    for required in ("topic", "sink"):
        if required not in given:
            raise ConfigurationError(f"{where} has no {required}", hint="give topic and sink")
    topic = values.text(given["topic"], f"{where}.topic")
    values.require_name(topic, "topic", f"{where}.topic")
    subscription = values.text(given.get("subscription", name), f"{where}.subscription")
    sink = values.text(given["sink"], f"{where}.sink")
    require_no_secret(sink, f"{where}.sink")
    return RelayPolicy(name, topic, subscription, sink)


def _limits(value: Any, base: HealthLimits) -> HealthLimits:
    names = ("unsequenced", "relay_lag", "consumer_lag", "end_to_end")
    given = values.section(value, "limits", names)
    return replace(base, **{name: values.seconds(given[name], f"limits.{name}") for name in given})


def _check_copies(
    retention: RetentionPolicy | None, placement: Placement | None, where: str
) -> None:
    wanted = retention.copies if retention else 0
    if placement is None and wanted:
        raise ConfigurationError(
            f"{where}.retention wants {wanted} copies, but {where}.archive has 0 targets: nothing "
            "could ever be removed",
            hint="name targets, or fewer copies",
        )
    if placement is not None and wanted > placement.copies:
        raise ConfigurationError(
            f"{where}.retention wants {wanted} copies, but {where}.archive makes "
            f"{placement.copies}: nothing could ever be removed",
            hint="make more copies, or ask for fewer",
        )

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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ops.archive.placement import Placement
from ops.policies import checks, values, yaml_file
from ops.policies.settings import (
    ArchiveSettings,
    HealthLimits,
    RelayGroupPolicy,
    RelayPolicy,
    RetentionPolicy,
    SealPolicy,
    SubscriptionSettings,
    TargetSettings,
    TopicPolicy,
    read,
    table,
)
from ops.policies.values import REFERENCE, at, entries, expand, require_name, section, text, topic
from ops.sinks.routing import with_routing
from penstock.archive.targets import Target
from penstock.database import address, config
from penstock.errors import ConfigurationError
from penstock.subscriptions import policies

log = logging.getLogger(__name__)

VARIABLE = "PENSTOCK_POLICIES"

#: Who has set a policy: a hand, a file that was not known by name, or this and the file's name.
HAND, FILE, FROM_FILE = "hand", "file", "file "

_OF_TOPICS = ("owner", "seal", "archive", "retention")
_OF_SUBSCRIPTIONS = tuple(table(SubscriptionSettings))
#: What the file says of each database for itself.
_OF_DATABASES = (
    "topics", "relays", "relay_groups", "limits", "global", "namespaces", "subscriptions", "canary"
)  # fmt: skip
#: A folder of this name in a target is no topic's: those have a dash.
#: Nor has it two underscores together: they separate it from the names of its jobs and ops.
_DATABASE = re.compile(r"(?=.{1,63}$)[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
#: What an entry of each section is, for sections whose entries may set policies.
_SECTIONS = {"namespaces": "namespace", "topics": "topic", "subscriptions": "subscription"}
#: What an entry may say beside policies.
_MORE = {"topic": _OF_TOPICS, "subscription": _OF_SUBSCRIPTIONS}
#: `archive: none`: retention removes events without a copy. It has to be said; no entry keeps them.
_NO_ARCHIVE = "none"
#: So many characters has the name of a policy file at most; the database records it.
_LONGEST_NAME = 500


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
    #: Also each sink of a relay with several.
    relays: dict[str, RelayPolicy] = field(default_factory=dict)
    relay_groups: dict[str, RelayGroupPolicy] = field(default_factory=dict)
    targets: dict[str, TargetSettings] = field(default_factory=dict)
    limits: HealthLimits = field(default_factory=HealthLimits)
    #: The topic through which a test event is sent; empty: none is.
    canary: str = ""
    #: What the policies set, by scope, name and kind.
    settings: dict[tuple[str, str, str], dict[str, float | str]] = field(default_factory=dict)
    #: The topics that subscriptions publish their dead letters to.
    dead_letters_to: dict[str, str] = field(default_factory=dict)
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
        found = config.database_url(environ) if is_own else expand(self.url, self.entry, environ)
        checks.require_own(found, self.entry, self.urls, environ)
        if not is_own:
            config.stands_in(found, f"{self.entry} in the policy file")
        return found

    def of_topic(self, topic: str) -> TopicPolicy:
        """The policy of a topic.  A topic that the file does not name is only kept."""
        return self.topics.get(topic, TopicPolicy(topic))

    def target(self, name: str, environ: Mapping[str, str] | None = None) -> Target:
        """An archive target by its name, with its folder made absolute."""
        if name not in self.targets:
            raise ConfigurationError(
                f"there is no archive target {name!r}",
                hint=f"the policy file has: {', '.join(self.targets) or 'none'}",
            )
        given = self.targets[name]
        uri = expand(given.uri, f"targets.{name}", environ)
        options = {
            option: expand(value, f"targets.{name}.options.{option}", environ)
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
        """The address of a relay's sink, with its rules and a local folder made absolute."""
        address = expand(relay.sink, f"relays.{relay.name}.sink", environ)
        with at(f"relays.{relay.name}.rules"):
            order = [("order", relay.order)] if relay.order else []
            address = with_routing(address, [*relay.rules, *order])
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
    with at(path.name):
        return _policies(content or {}, path.absolute())


def _policies(content: Any, path: Path) -> Policies:
    known = ("targets", *_OF_DATABASES, "databases", "name")
    top = section(content, "the file", known)
    folder, file = path.parent, _file_name(top.get("name"), path)
    targets = {name: _target(name, value) for name, value in entries(top, "targets").items()}
    found = _of_database(top, Policies(folder, file, targets=targets))
    others: dict[str, Policies] = {}
    for name, value in entries(top, "databases").items():
        where = f"databases.{name}"
        if not _DATABASE.fullmatch(name):
            raise ConfigurationError(
                f"{where} has a name that is not allowed",
                hint="use up to 63 lower-case letters and digits, a letter first, with single "
                "underscores between them",
            )
        given = section(value, where, ("url", *_OF_DATABASES))
        url = _url(given.get("url"), f"{where}.url")
        if url in {each.url for each in others.values()}:
            raise ConfigurationError(f"{where}.url is that of another database too")
        base = Policies(folder, file, targets=targets, limits=found.limits, database=name, url=url)
        with at(where):
            others[name] = _of_database(given, base)
    checks.require_apart({"": found, **{f"databases.{name}.": p for name, p in others.items()}})
    urls = {each.entry: each.url for each in others.values()}
    of_all = {name: replace(each, urls=urls) for name, each in others.items()}
    return replace(found, urls=urls, others=of_all)


def _file_name(given: Any, path: Path) -> str:
    """Which file it is, wherever its text was read."""
    name = os.path.normpath(path) if given is None else text(given, "name")
    if len(name) > _LONGEST_NAME:
        raise ConfigurationError(
            f"the file's {'place' if given is None else 'name'} has {len(name)} characters",
            hint=f"write name: NAME at the top, of up to {_LONGEST_NAME} characters",
        )
    return name


def _of_database(top: Mapping[str, Any], base: Policies) -> Policies:
    """What the file says for one database; ``base`` has what all databases share."""
    canary = top.get("canary") or ""
    groups = {name: _relay_group(name, v) for name, v in entries(top, "relay_groups").items()}
    alone = {name: _relay(name, value) for name, value in entries(top, "relays").items()}
    found = replace(
        base,
        topics={name: _topic(name, v, base.targets) for name, v in entries(top, "topics").items()},
        relays=checks.with_sinks(alone, groups),
        relay_groups=groups,
        limits=read(HealthLimits, top.get("limits") or {}, "limits", **asdict(base.limits)),
        canary=topic(canary, "canary") if canary else "",
        settings=_settings(top),
        dead_letters_to=_dead_letters_to(top),
    )
    checks.require_own_subscriptions(found.relays.values())
    return found


def _url(value: Any, where: str) -> str:
    """An address without a password, or the variable that holds one; it is never repeated."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{where} is missing", hint="write ${NAME}")
    if REFERENCE.fullmatch(value):
        return value
    with at(where):
        config.dialect_of_url(value)
        is_secret = "passw" in value.lower() or ("://" in value and address.read(value).password)
    if is_secret:
        raise ConfigurationError(
            f"{where} has a password that is written into the file",
            hint="write ${NAME}, and set the environment variable NAME",
        )
    return value


def _settings(top: Mapping[str, Any]) -> dict[tuple[str, str, str], dict[str, float | str]]:
    """Every policy that the file sets, for everything or in an entry of a section."""
    found = {}
    of_all = [("global", "", "global", top.get("global"))]
    for name_of_section, scope in _SECTIONS.items():
        for name, value in entries(top, name_of_section).items():
            where = f"{name_of_section}.{name}"
            require_name(name, scope, where)
            of_all.append((scope, name, where, value))
    for scope, name, where, value in of_all:
        known = (*policies.SETTINGS, *_MORE.get(scope, ()))
        given = section(value or {}, where, known)
        for kind in policies.SETTINGS:
            if given.get(kind):
                with at(f"{where}.{kind}"):
                    found[scope, name, kind] = policies.check(kind, given[kind])
    return found


def _dead_letters_to(top: Mapping[str, Any]) -> dict[str, str]:
    """Where the dead letters of subscriptions go on to, by subscription."""
    found = {}
    for name, value in entries(top, "subscriptions").items():
        given = {each: said for each, said in (value or {}).items() if each in _OF_SUBSCRIPTIONS}
        said = read(SubscriptionSettings, given, f"subscriptions.{name}").dead_letters_to
        if said is not None:
            found[name] = said
    return found


def _target(name: str, value: Any) -> TargetSettings:
    """A target; one without options may be its place alone."""
    where = f"targets.{name}"
    given = value if isinstance(value, dict) else {"uri": value}
    found = read(TargetSettings, {"uri": None, **given}, where)
    if not REFERENCE.fullmatch(found.uri):
        Target(name, found.uri, tuple(found.options.items()))  # refuses a bad name or place
    return found


def _topic(name: str, value: Any, targets: Mapping[str, TargetSettings]) -> TopicPolicy:
    where = f"topics.{name}"
    require_name(name, "topic", where)
    given = section(value or {}, where, (*_OF_TOPICS, *policies.SETTINGS))
    owner = values.owner(given.get("owner"), f"{where}.owner")
    seal, archive, retention = (given.get(each) for each in ("seal", "archive", "retention"))
    is_none = archive == _NO_ARCHIVE
    placed = _placement(archive, f"{where}.archive", targets) if archive and not is_none else None
    kept = _retention(retention, f"{where}.retention", is_archived=not is_none)
    checks.require_copies(kept, placed, where)
    return TopicPolicy(
        name,
        owner,
        None if seal is None else read(SealPolicy, seal, f"{where}.seal"),
        tuple(placed.targets) if placed else (),
        kept,
        placed,
    )


def _placement(value: Any, where: str, targets: Mapping[str, TargetSettings]) -> Placement:
    """A list of targets, with a copy on each; or how many copies lie on them."""
    if not isinstance(value, (list, dict)):
        raise ConfigurationError(
            f"{where} is not a list", hint="write archive: [target], or archive: none"
        )
    given = value if isinstance(value, dict) else {"targets": value}
    found = read(ArchiveSettings, given, where)
    if not isinstance(found.targets, list):
        raise ConfigurationError(f"{where}.targets is not a list", hint="write targets: [a, b, c]")
    names = [text(each, where) for each in found.targets]
    checks.require_targets(names, targets, where)
    copies = found.copies or len(names)
    weights = {name: targets[name].weight for name in names}
    with at(where):
        return Placement(weights, copies, found.ack_quorum or copies, found.copy_seconds)


def _retention(value: Any, where: str, *, is_archived: bool) -> RetentionPolicy | None:
    if value is None:
        return None
    if not is_archived and isinstance(value, dict) and "copies" in value:
        raise ConfigurationError(
            f"{where} asks for copies of a topic with archive: none",
            hint="leave copies out, or name targets: archive: [target]",
        )
    return read(RetentionPolicy, value, where, copies=1 if is_archived else 0)


def _relay(name: str, value: Any) -> RelayPolicy:
    return read(RelayPolicy, value, f"relays.{name}", name=name, subscription=name)


def _relay_group(name: str, value: Any) -> RelayGroupPolicy:
    found = read(RelayGroupPolicy, value, f"relay_groups.{name}", name=name)
    checks.require_relay_quorum(found)
    return found

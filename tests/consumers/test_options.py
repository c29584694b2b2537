"""Where an option comes from, and what is refused before anything is started."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from consumers import __main__ as command
from consumers.gateway.settings import gateway_options
from consumers.options import FILE, OPTIONS, PREFIX, PROFILES, effective
from consumers.settings import Settings
from penstock.cli.flags import takes
from penstock.errors import ConfigurationError
from penstock.subscriptions import policies
from penstock.upkeep.options import Value, chosen, from_environment, from_flags, option, options_of
from penstock.upkeep.settings import UpkeepSettings
from tests.kit.proof import proves

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference"
SECRET = "hunter2"
URL = f"postgresql://me:{SECRET}@db.example/app"

#: Of each source one value, the strongest first.
SOURCES = {"flag": 11, "environment": 12, "file": 13, "profile throughput": 1_000, "default": 500}


GIVEN = [
    *itertools.combinations(SOURCES, 1),
    *itertools.combinations(SOURCES, 2),
    tuple(SOURCES),
]


@proves("options of a daemon")
@pytest.mark.parametrize("given", GIVEN)
def test_the_strongest_source_counts(given: tuple[str, ...], tmp_path: Path) -> None:
    """Guard: the order of the sources; every pair of them, and all at once."""
    flags: dict[str, object] = {}
    environ: dict[str, str] = {}
    file = tmp_path / "daemon.yaml"
    lines = ["log_level: info"]
    if "flag" in given:
        flags["batch_size"] = str(SOURCES["flag"])
    if "environment" in given:
        environ[f"{PREFIX}BATCH_SIZE"] = str(SOURCES["environment"])
    if "file" in given:
        lines.append(f"batch_size: {SOURCES['file']}")
    if "profile throughput" in given:
        lines.append("profile: throughput")
    file.write_text("\n".join(lines))
    chosen = effective(flags, environ | {FILE: str(file)})
    strongest = next(each for each in SOURCES if each in (*given, "default"))
    assert chosen.values["batch_size"] == SOURCES[strongest]
    assert chosen.sources["batch_size"] == strongest


def refused(tmp_path: Path, text: str | bytes, environ: Mapping[str, str] | None = None) -> str:
    """What is said of a file with this text."""
    file = tmp_path / "daemon.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigurationError) as caught:
        effective({"config": str(file)}, environ or {})
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


BAD_FILES: dict[str, tuple[str | bytes, str]] = {
    "unknown key": ("proceses: 2", "'proceses' is not known. the nearest is processes"),
    "secret key": ("database_url: x", "'database_url' is not known"),
    "key twice": ("processes: 2\nprocesses: 3", "line 2: the key 'processes' stands twice"),
    "no table": ("- processes", "is not a table"),
    "a key that is a list": ("{[processes]: 2}", "line 1"),
    "no YAML": ("processes: [", "daemon.yaml in line"),
    "no text": (b"\xff\xfe\x00", "cannot be read"),
    "tag": ("processes: !!python/object/apply:os.getpid []", "line 1"),
    "wrong date": ("processes: 2026-13-45", "daemon.yaml"),
    "below": ("processes: -1", "processes is -1. use a whole number from 0 to 64"),
    "above": ("processes: 65", "from 0 to 64"),
    "fraction": ("batch_size: 2.5", "batch_size is 2.5. use a whole number"),
    "no number": ("drain_seconds: soon", "drain_seconds is 'soon'. use a number"),
    "not a number": ("drain_seconds: .nan", "from 0 to 86,400"),
    "endless": ("drain_seconds: .inf", "from 0 to 86,400"),
    "truth": ("http_port: true", "http_port is True"),
    "port": ("http_port: 65536", "from 0 to 65,535"),
    "role": ("roles: [sequencer, relais]", "the word 'relais' is not known. the nearest is relay"),
    "roles of a kind": ("roles: {sequencer: 1}", "write some of sequencer"),
    "no role": ("roles: []", "use some of sequencer"),
    "word": ("log_level: loud", "use one of debug, info"),
    "profile": ("profile: fast", "use one of balanced, latency, throughput, cost"),
    "empty text": ("consumer_id: ''", "consumer_id is ''"),
    "number for text": ("consumer_id: 7", "quote what is not"),
    "handler without a name": ("consumers: [billing]", "SUBSCRIPTION=VALUE"),
    "handler of a kind": ("consumers: {billing: [a, b]}", "consumers: billing is ['a', 'b']"),
    "consumers of a kind": ("consumers: 7", "one `subscription: value` a line"),
}


@proves("options of a daemon")
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused(name: str, tmp_path: Path) -> None:
    text, said = BAD_FILES[name]
    assert said in refused(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read.*--config"):
        effective({}, {FILE: str(tmp_path / "nowhere.yaml")})


def test_bad_variables_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=f"nearest is {PREFIX}HTTP_PORT"):
        effective({}, {f"{PREFIX}HTTPPORT": "80"})
    with pytest.raises(ConfigurationError, match=f"{PREFIX}HTTP_PORT is 'many'"):
        effective({}, {f"{PREFIX}HTTP_PORT": "many"})
    # Even where a flag would win.
    with pytest.raises(ConfigurationError, match="HTTP_PORT"):
        effective({"http_port": "80"}, {f"{PREFIX}HTTP_PORT": "many"})


def test_what_kubernetes_says_of_a_service_is_no_option() -> None:
    links = {"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "80", "SERVICE_PORT_HTTP": "80",
             "PORT": "tcp://10.0.0.1:80", "PORT_80_TCP_ADDR": "10.0.0.1"}  # fmt: skip
    chosen = effective({}, {f"{PREFIX}{name}": value for name, value in links.items()})
    assert set(chosen.sources.values()) == {"default"}


def test_no_page_calls_a_flag_by_the_key_of_the_file() -> None:
    """The key `relays` is a list, the flag `--relay` is one of them."""
    keys = {f"--{name.replace('_', '-')}" for name in OPTIONS}
    wrong = keys - {each.flag(name) for name, each in OPTIONS.items()}
    assert "--relays" in wrong
    for page in DOCS.parent.rglob("*.md"):
        named = set(re.findall(r"(?<![\w-])--[a-z-]+", page.read_text("utf-8")))
        assert not named & wrong, page.name


@pytest.mark.parametrize("link", ["tcp://10.0.0.1:9464", "udp://10.0.0.1:9464"])
def test_a_service_s_address_is_no_value_of_an_option(link: str) -> None:
    """A service penstock-gateway makes PENSTOCK_GATEWAY_PORT: the gateway has an option `port`."""
    chosen = gateway_options({}, {"PENSTOCK_GATEWAY_PORT": link})
    assert chosen.sources["port"] == "default"
    assert gateway_options({}, {"PENSTOCK_GATEWAY_PORT": "8081"}).values["port"] == 8081
    # What no service makes is still refused.
    for name, value in (("PORT", "tcp:80"), ("DRAIN_SECONDS", link)):
        with pytest.raises(ConfigurationError, match=f"PENSTOCK_GATEWAY_{name} is "):
            gateway_options({}, {f"PENSTOCK_GATEWAY_{name}": value})


def test_each_kind_from_text_and_from_a_file_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "daemon.yaml"
    file.write_text(
        "roles: [consumers, sequencer]\nprocesses: 3\nweight: 2\nlog_level: DEBUG\n"
        "consumers:\n  billing: shop:bill\n  stock: shop:stock\nconsumer_id:\n"
    )
    environ = {"ROLES": "consumers, sequencer", "PROCESSES": "3", "WEIGHT": "2",
               "LOG_LEVEL": "DEBUG", "CONSUMERS": "billing=shop:bill, stock=shop:stock",
               "CONSUMER_ID": ""}  # fmt: skip
    by_text = effective({}, {f"{PREFIX}{name}": value for name, value in environ.items()})
    by_file = effective({"config": str(file)}, {})
    assert by_text.values == by_file.values
    assert by_file.values["roles"] == ("sequencer", "consumers")
    assert by_file.values["consumers"] == {"billing": "shop:bill", "stock": "shop:stock"}


def test_check_prints_what_would_run_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "daemon.yaml"
    file.write_text("profile: cost\nroles: [sequencer, relay]\nprocesses: 2\n")
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", URL)
    monkeypatch.setenv(f"{PREFIX}RELAYS", f"export=jsonl:{tmp_path}")
    monkeypatch.setattr("sys.argv", ["consumers", "--check", "--config", str(file)])
    with pytest.raises(SystemExit) as leaving:
        command.main()
    assert leaving.value.code == 0
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    assert err == ""
    assert "# database: postgresql://db.example/app" in out
    assert 'profile: "cost"  # file' in out
    assert "sweep_seconds: 30.0  # profile cost" in out
    # It is a file itself.
    again = tmp_path / "again.yaml"
    again.write_text(out)
    assert effective({"config": str(again)}, {}).values["relays"] == {"export": f"jsonl:{tmp_path}"}


def test_a_database_of_the_policy_file_is_taken_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not the one of the environment; a name that the file does not have is refused."""
    policies = tmp_path / "policies.yaml"
    policies.write_text("databases: {orders: {url: '${ORDERS_URL}'}}")
    monkeypatch.setenv("PENSTOCK_POLICIES", str(policies))
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", URL)
    monkeypatch.setenv("ORDERS_URL", f"mysql://me:{SECRET}@orders.example/app")
    for name, code in (("orders", 0), ("stock", 2)):
        monkeypatch.setattr("sys.argv", ["consumers", "--check", "--database", name])
        with pytest.raises(SystemExit) as leaving:
            command.main()
        assert leaving.value.code == code
    out, err = capsys.readouterr()
    assert "# database: mysql://orders.example/app" in out
    assert "there is no database 'stock'" in err
    assert SECRET not in out + err


def test_settings_travel_to_another_process() -> None:
    values = effective({}, {}).values
    known = {name: values[name] for name in Settings.__dataclass_fields__ if name in values}
    settings = Settings(url=URL, **known)
    assert Settings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_is_within_the_bounds_and_in_the_docs(profile: str) -> None:
    for name, value in PROFILES[profile].items():
        assert OPTIONS[name].read(value, name) == value
    chosen = effective({"profile": profile}, {}).values
    (row,) = re.findall(rf"^\| `{profile}` \|(.*)\|$", page(), re.MULTILINE)
    told = [float(each.replace(",", "")) for each in row.split("|")[:4]]
    names = ("batch_size", "idle_seconds", "sequencer_events", "sweep_seconds")
    assert told == [chosen[name] for name in names]


def test_the_policies_of_the_profiles_keep_the_rule() -> None:
    """A lease lasts three heartbeats at least: `policies.check` refuses what does not."""
    blocks = re.findall(r"^```yaml\n(global:.*?)```", page(), re.MULTILINE | re.DOTALL)
    found = [each["heartbeat"] for each in policies_of(blocks)]
    assert len(found) == len(PROFILES) - 1
    for each in found:
        assert policies.check("heartbeat", each) == each


@dataclass(frozen=True, slots=True, kw_only=True)
class WithOneMore(UpkeepSettings):
    """What somebody writes who adds an option."""

    extra_seconds: float = option("number", 2.5, "one more", 1, 9)
    things: dict[str, str] = option("pairs", {}, "some more")


def test_an_option_is_written_once() -> None:
    """The field is all: its flag, its variable, its default and its bounds come from it."""
    options = options_of(WithOneMore)
    assert list(options)[:3] == ["extra_seconds", "things", "sequencer_events"]

    @takes(options)
    def command(**given: Value) -> None:
        """A command."""

    app = typer.Typer(add_completion=False)
    app.command()(command)
    flags = {each.name: each for each in typer.main.get_command(app).params}
    assert flags.keys() - {"help"} == options.keys()
    thing: Any = flags["things"]
    assert (thing.opts, thing.metavar, thing.help) == (["--thing"], "PAIRS", "some more")
    given = {
        "flag": from_flags(options, {"extra_seconds": None, "things": ["a=b"]}),
        "environment": from_environment(options, "X_", {"X_EXTRA_SECONDS": "3", "X_THINGS": "c=d"}),
    }
    made = WithOneMore(**chosen(options, given).values)
    assert (made.extra_seconds, made.things, made.http_port) == (3.0, {"a": "b"}, 0)
    assert WithOneMore().things is not WithOneMore().things
    with pytest.raises(ConfigurationError, match=r"X_EXTRA_SECONDS is '10'\. use a number from 1"):
        from_environment(options, "X_", {"X_EXTRA_SECONDS": "10"})


def policies_of(blocks: list[str]) -> list[dict[str, dict[str, float | str]]]:
    return [each["global"] for block in blocks for each in yaml.safe_load_all(block)]


def page() -> str:
    return (DOCS / "daemon.md").read_text("utf-8")

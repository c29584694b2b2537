"""The files of deploy/: each is read by the program that it is for, or compared with its schema."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from dagster import DagsterInstance
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from dagster._core.workspace.load import location_origins_from_yaml_paths

from ops import spark
from ops.policies import file as policy_file
from tools.servers.stores import SYSTEMD_ANALYZE

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
CHART = Path(__file__).parent / "dagster_chart.yaml"
#: The instructions of a container file, after the reference of Dockerfiles (2026-11-23).
INSTRUCTIONS = {
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL",
    "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
}  # fmt: skip


def verified(folder: Path) -> list[str]:
    """What systemd finds wrong in the units of a folder, but for programs that are not here."""
    units = SYSTEMD_ANALYZE.root() / "usr" / "lib" / "systemd" / "system"
    done = subprocess.run(
        [*SYSTEMD_ANALYZE.command(), "verify", *map(str, sorted(folder.glob("*.service")))],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:{units}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = (done.stdout + done.stderr).splitlines()
    return [line for line in said if "/opt/penstock/" not in line]


def test_systemd_reads_the_units(tmp_path: Path) -> None:
    """Guard: systemd itself.  It also finds a setting that does not exist."""
    assert len(UNITS) == 4
    assert verified(DEPLOY / "systemd") == []
    text = UNITS[0].read_text()
    (tmp_path / "penstock-wrong.service").write_text(text.replace("KillMode", "KilMode"))
    assert any("KilMode" in line for line in verified(tmp_path))


def test_dagster_reads_its_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    """A real PostgreSQL holds runs and events; a setting that Dagster does not know is refused."""
    parts = urlsplit(database_url)
    for name, value in {
        "HOST": parts.hostname, "PORT": str(parts.port), "USER": parts.username,
        "PASSWORD": parts.password or "none", "DB": parts.path.strip("/"),
    }.items():  # fmt: skip
        monkeypatch.setenv(f"DAGSTER_POSTGRES_{name}", str(value))
    settings = (DEPLOY / "dagster" / "dagster.yaml").read_text()
    (tmp_path / "dagster.yaml").write_text(settings)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert type(instance.run_storage).__name__ == "PostgresRunStorage"
        assert instance.get_runs_count() == 0
        assert instance.run_monitoring_enabled
        assert not instance.telemetry_enabled
    (tmp_path / "dagster.yaml").write_text(settings.replace("purge_after_days", "purge_after"))
    with (
        pytest.raises(Exception, match="purge_after"),
        DagsterInstance.from_config(str(tmp_path)) as instance,
    ):
        instance.get_settings("retention")


def fits(path: Path, *schema: str) -> bool:
    """Whether a file keeps to a schema."""
    return (
        subprocess.run(
            [sys.executable, "-m", "check_jsonschema", *schema, str(path)],
            capture_output=True, timeout=60, check=False,
        ).returncode
        == 0
    )  # fmt: skip


def test_compose_keeps_to_its_schema(tmp_path: Path) -> None:
    """Guard: the schema of the Compose specification that check-jsonschema carries."""
    schema = ("--builtin-schema", "vendor.compose-spec")
    text = (DEPLOY / "compose.yaml").read_text()
    assert fits(DEPLOY / "compose.yaml", *schema)
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(text.replace("healthcheck:", "healthchek:", 1))
    assert not fits(wrong, *schema)


def test_the_chart_takes_every_value(tmp_path: Path) -> None:
    """Guard: a schema of the chart's values, with the day on which it was written."""
    assert fits(DEPLOY / "helm" / "values.yaml", "--schemafile", str(CHART))
    text = (DEPLOY / "helm" / "values.yaml").read_text()
    wrong = tmp_path / "values.yaml"
    for old, new in (
        ("runCoordinator:", "runCordinator:"),
        ("defaultLimit: 1", "defaultLimit: one"),
        ("queuedRunCoordinator: {}", "queuedRunCoordinator: {maxConcurrentRuns: 5}"),
    ):
        assert text.count(old) == 1
        wrong.write_text(text.replace(old, new))
        assert not fits(wrong, "--schemafile", str(CHART)), new


def test_the_chart_gets_the_limits_of_the_other_ways_to_deploy() -> None:
    """Guard: without a limit for its pools, ten runs start ten Sparks."""
    limits = yaml.safe_load((DEPLOY / "helm" / "values.yaml").read_text())["concurrency"]
    plain = yaml.safe_load((DEPLOY / "dagster" / "dagster.yaml").read_text())["concurrency"]
    assert limits["enabled"]
    assert limits["pools"]["defaultLimit"] == plain["pools"]["default_limit"]
    assert limits["pools"]["granularity"] == plain["pools"]["granularity"]
    assert limits["runs"]["maxConcurrentRuns"] == plain["runs"]["max_concurrent_runs"]


def test_dagster_reads_the_workspace() -> None:
    """Dagster's own reader takes it; the code server listens where it says, in every way."""
    path = DEPLOY / "dagster" / "workspace.yaml"
    (origin,) = location_origins_from_yaml_paths([str(path)])
    assert isinstance(origin, GrpcServerCodeLocationOrigin)
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    port = str(origin.port)
    assert origin.host in services and port in services[origin.host]["command"]
    assert f"-p {port} " in (DEPLOY / "systemd" / "penstock-code.service").read_text()
    values = yaml.safe_load((DEPLOY / "helm" / "values.yaml").read_text())
    (deployment,) = values["dagster-user-deployments"]["deployments"]
    assert str(deployment["port"]) == port and deployment["name"] == origin.location_name


def steps(text: str) -> list[tuple[str, str]]:
    """The instructions of a container file, each with what is behind it."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in joined]


def test_the_container_file_is_well_formed() -> None:
    """Its instructions exist, its commands are lists, what it copies is in the checkout."""
    found = steps((DEPLOY / "Containerfile").read_text())
    assert {name for name, _ in found} <= INSTRUCTIONS
    stages = [rest.rpartition(" AS ")[2] for name, rest in found if name == "FROM"]
    assert {"service", "platform"} < set(stages)
    for name, rest in found:
        if name in {"CMD", "ENTRYPOINT"}:
            assert all(isinstance(word, str) for word in json.loads(rest))
    for path in copied():
        assert path.exists(), path
    # What runs in it is no administrator. Kubernetes believes only a number.
    users = [rest for name, rest in found if name == "USER"]
    (number,) = re.findall(r"useradd --uid (\d+) ", " ".join(rest for _, rest in found))
    assert users == [f"{number}:{number}"] * 2


def copied() -> list[Path]:
    """What the container file takes from the checkout."""
    texts = [rest for name, rest in steps((DEPLOY / "Containerfile").read_text()) if name == "COPY"]
    named = {source for text in texts if not text.startswith("--") for source in text.split()[:-1]}
    return [ROOT / source for source in sorted(named)]


def test_only_what_is_copied_goes_to_who_builds() -> None:
    """The checkout holds penstock.env and `.penstock`: all is denied but the sources of COPY."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    denied, *rules = [line for line in lines if line and not line.startswith("#")]
    allowed = [line.removeprefix("!") for line in rules if line.startswith("!")]
    assert denied == "*"
    assert [ROOT / each for each in sorted(allowed)] == copied()
    # What is denied again stands last: the last rule that fits counts.
    assert rules[len(allowed) :] == ["**/__pycache__"]


def test_the_image_has_all_code_that_it_runs(tmp_path: Path) -> None:
    """Only what is copied: no module of the checkout is imported from elsewhere.

    The programs themselves start in the images: tests/release/test_images.py.
    """
    for path in copied():
        (tmp_path / path.name).symlink_to(path)
    look = (
        "import sys; import dagster_project.definitions, consumers.daemon, penstock.cli.main;"
        f"root, venv = {str(ROOT)!r}, sys.prefix;"
        "files = [getattr(m, '__file__', None) or '' for m in list(sys.modules.values())];"
        "print(*[f for f in files if f.startswith(root) and not f.startswith(venv)], sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", look],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.split() == []


def commands() -> list[list[str]]:
    """Every command that a unit or a container runs."""
    found = [
        line.partition("=")[2].split()
        for unit in UNITS
        for line in unit.read_text().splitlines()
        if line.startswith("ExecStart=")
    ]
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return found + [each["command"] for each in services.values() if "command" in each]


@cache
def _help(*called: str) -> str:
    return subprocess.run(
        [*called, "--help"], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT
    ).stdout


@pytest.mark.parametrize("command", commands(), ids=lambda each: Path(each[0]).name)
def test_each_command_and_option_exists(command: list[str]) -> None:
    """The program's own help names the options."""
    program, *rest = command
    words = [each for each in rest if not each.startswith("-") and re.fullmatch(r"[a-z-]+", each)]
    if Path(program).name == "python":
        called = [sys.executable, "-m", "consumers"]
    else:
        subcommands = words[: {"dagster": 2, "penstock": 1, "dagster-daemon": 1}.get(
            Path(program).name, 0
        )]  # fmt: skip
        called = [str(Path(sys.executable).parent / Path(program).name), *subcommands]
    told = _help(*called)
    for option in {each for each in rest if each.startswith("-")} - {"-m"}:
        assert re.search(rf"(?<![\w-]){option}\b", told), f"{program} does not know {option}"


def test_each_way_to_deploy_prepares_the_database_first() -> None:
    """The programs refuse a schema that is not theirs; who follows the page has one."""
    page = (ROOT / "docs" / "reference" / "deploy.md").read_text("utf-8")
    systemd = page.partition("## systemd\n")[2].partition("\n## ")[0]
    before, _, _ = systemd.partition("systemctl enable")
    assert "penstock migrate" in before
    job = (DEPLOY / "helm" / "penstock" / "templates" / "migrate.yaml").read_text("utf-8")
    assert "helm.sh/hook: pre-install,pre-upgrade" in job
    assert "args: [penstock, migrate]" in job
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    assert compose["migrate"]["command"] == ["penstock", "migrate"]
    for name in ("daemon", "code"):
        assert "migrate" in compose[name]["depends_on"]


def test_who_needs_a_service_waits_until_it_works() -> None:
    """Started is not enough: the code server makes Dagster's tables, and then loads for seconds."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    needed = {name: services[name].get("depends_on", {}) for name in services}
    for name in ("webserver", "dagster-daemon"):
        assert set(needed[name]) == {"code", "dagster-database"}
    for each in needed.values():
        for other, how in each.items():
            ends = services[other].get("restart") == "no"
            wanted = "service_completed_successfully" if ends else "service_healthy"
            assert how == {"condition": wanted}, other
            assert ends or "healthcheck" in services[other], other
    _, *called, option, port = services["code"]["healthcheck"]["test"]
    assert port in services["code"]["command"]
    program, *subcommands = called
    assert f"{option}," in _help(str(Path(sys.executable).parent / program), *subcommands)


#: What the files of deploy/ set themselves, because it is theirs.
FIXED = {
    "PENSTOCK_POLICIES", "PENSTOCK_DAEMON_CONFIG", "PENSTOCK_DAEMON_HTTP_HOST",
    "PENSTOCK_DAEMON_HTTP_PORT", "DAGSTER_HOME", "DAGSTER_POSTGRES_HOST", "DAGSTER_POSTGRES_PORT",
    "DAGSTER_POSTGRES_USER", "DAGSTER_POSTGRES_DB",
}  # fmt: skip
DATA = "/var/lib/penstock"
SCRATCH = "/opt/penstock/.penstock"


def named_variables() -> set[str]:
    """Those that the pages for the platform name."""
    pages = ("deploy", "dagster", "daemon", "relay", "policies")
    text = "".join(
        (ROOT / "docs" / "reference" / f"{name}.md").read_text("utf-8") for name in pages
    )
    return set(re.findall(r"\b(?:PENSTOCK|DAGSTER_POSTGRES)_[A-Z_]*[A-Z]\b", text))


def platform() -> dict[str, dict[str, Any]]:
    """The services that run Penstock's image."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return {name: each for name, each in services.items() if each["image"] == "penstock-platform"}


def test_every_variable_reaches_each_container_and_unit() -> None:
    """Guard: env_file and EnvironmentFile.  What a file sets itself would hide the variable."""
    named = named_variables()
    assert {
        "PENSTOCK_WEBHOOK_URL", "PENSTOCK_SPARK_CONFIG", "PENSTOCK_PULSAR_TOKEN",
        "PENSTOCK_KAFKA_PASSWORD", *FIXED
    } - {"DAGSTER_HOME"} <= named  # fmt: skip
    assert len(platform()) == 5
    for name, service in platform().items():
        assert service["env_file"] == ["${PENSTOCK_ENV_FILE:-../penstock.env}"], name
        for variable, value in service["environment"].items():
            assert variable in FIXED or value.startswith(f"${{{variable}:?"), (name, variable)
    for unit in UNITS:
        settings = unit.read_text().splitlines()
        assert "EnvironmentFile=/etc/penstock/penstock.env" in settings
        own = {each.split("=")[1] for each in settings if each.startswith("Environment=")}
        assert own <= FIXED, unit.name


def written(policies: str) -> set[str]:
    """The folders of targets, sinks and Spark, with the shipped policy file at this place."""
    found = policy_file.parse((ROOT / "policies.yaml").read_text("utf-8"), Path(policies))
    targets = {str(found.target(name).root) for name in found.targets}
    sinks = {found.sink_address(each).removeprefix("jsonl:") for each in found.relays.values()}
    scratch = str(spark._ROOT / ".penstock" / "spark").replace(str(ROOT), "/opt/penstock")
    return {*targets, *sinks, scratch}


def owned(line: str) -> list[str]:
    """The folders that a command gives to the user."""
    found = re.search(r"install -d -o penstock ((?:/\S+ ?)+)", line)
    return found[1].split() if found else []


def is_below(path: str, folders: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(each) for each in folders)


def test_every_folder_that_is_written_is_in_a_volume_and_the_user_s() -> None:
    """Guard: the place of the policy file, the volumes, and `install -d -o penstock`."""
    text = (DEPLOY / "Containerfile").read_text()
    made = [path for _, rest in steps(text) for path in owned(rest)]
    for name, service in platform().items():
        mounts = [each.rsplit(":", 1) for each in service["volumes"] if not each.endswith(":ro")]
        volumes = [place for _, place in mounts]
        assert set(volumes) == set(made), name
        for path in written(service["environment"]["PENSTOCK_POLICIES"]):
            assert is_below(path, volumes), path
    assert f"PENSTOCK_POLICIES={DATA}/policies.yaml" in text
    assert {DATA, SCRATCH} <= set(made)


def test_every_folder_that_a_unit_writes_is_open_and_the_user_s() -> None:
    """Guard: ReadWritePaths, and the commands of docs/reference/deploy.md; /etc/penstock too."""
    page = (ROOT / "docs" / "reference" / "deploy.md").read_text("utf-8")
    made = [path for line in page.splitlines() for path in owned(line)]
    for unit in UNITS:
        settings = dict(
            line.split("=", 1) for line in unit.read_text().splitlines() if line[:1].isalpha()
            and not line.startswith("Environment=")
        )  # fmt: skip
        own = re.findall(r"^Environment=(\w+)=(.*)$", unit.read_text(), re.MULTILINE)
        environment = dict(own)
        open_paths = settings["ReadWritePaths"].split()
        assert set(open_paths) <= set(made)
        home = [environment["DAGSTER_HOME"]] if "DAGSTER_HOME" in environment else []
        for path in {*written(environment["PENSTOCK_POLICIES"]), *home}:
            assert is_below(path, open_paths), (unit.name, path)
        assert is_below(settings["WorkingDirectory"], open_paths)
    for line in page.splitlines():
        if "/etc/penstock/" in line and line.startswith(("install", "echo")):
            assert "install -D " in line, line


def test_secrets_come_from_the_environment() -> None:
    """Guard: no password and no address with one stands in a file of deploy/."""
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            for line in path.read_text().splitlines():
                found = re.search(r"(?i)(password|secret)\w*: *(?P<value>.*)", line.strip("# "))
                value = found["value"].strip() if found else ""
                is_safe = value.startswith(
                    (
                        "${",
                        "{env:",
                        "{name:",
                        "dagster-postgresql-secret",
                        "penstock-secrets",
                        "false",
                    )
                )
                assert not value or is_safe, f"{path.name}: {line.strip()}"
                assert not re.search(r"://[^/\s:]+:[^/\s@]+@", line), f"{path.name}: {line}"

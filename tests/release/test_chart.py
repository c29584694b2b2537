"""The chart of deploy/helm/penstock: rendered by Helm, compared with the schemas of Kubernetes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

import penstock
from consumers.commands import run_daemon
from consumers.gateway.command import run_gateway
from penstock.upkeep.settings import upkeep_settings
from tests.house.test_deploy import DEPLOY, _help
from tests.kit.proof import proves
from tests.support import missing
from tools.servers import kubernetes
from tools.servers.errors import ServerUnavailable

CHART = DEPLOY / "helm" / "penstock"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
KINDS = (
    "configmap-v1",
    "deployment-apps-v1",
    "job-batch-v1",
    "poddisruptionbudget-policy-v1",
    "service-v1",
)
#: Where the template puts the file of a program with `config`.
PLACE = "/etc/penstock-program/config.yaml"
ADDED = ["--http-host", "0.0.0.0", "--http-port", "9464"]
EVERYTHING = [
    "--set=policies=penstock-policies",
    "--set=programs.relay.config.relays.export=jsonl:out",
    *(f"--set=programs.{name}.enabled=true" for name in VALUES["programs"]),
]


@proves("the chart")
def test_its_version_is_that_of_the_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == penstock.__version__


@proves("the chart")
@pytest.mark.parametrize("name", VALUES["programs"])
def test_each_command_and_option_exists(name: str) -> None:
    """The programs' own help names them, and those that the template adds."""
    command = VALUES["programs"][name]["command"]
    is_daemon = command[0] == "python"
    program = str(Path(sys.executable).parent / "penstock")
    told = _help(program, "daemon" if is_daemon else command[1])
    for option in [each for each in command[2:] if each.startswith("--")] + [
        "--http-host", "--http-port",
    ]:  # fmt: skip
        assert re.search(rf"(?<![\w-]){option}\b", told), option


def check(arguments: list[str], config: str | None, tmp_path: Path) -> Result:
    """What the program says with these arguments and this file, in a pod with every service."""
    place = tmp_path / "config.yaml"
    place.write_text(config or "")
    arguments = [str(place) if each == PLACE else each for each in arguments]
    services = {
        f"PENSTOCK_{name.upper()}_PORT": "tcp://10.0.0.1:9464" for name in VALUES["programs"]
    }
    app = typer.Typer()
    if arguments[0] == "python":
        app.command()(run_daemon)
        rest = [*arguments[3:], "--check"]
    elif arguments[1] == "gateway":
        app.command()(run_gateway)
        rest = [*arguments[2:], "--check"]
    else:
        app.command()(lambda: upkeep_settings({}, os.environ))
        rest = []
    login = {"PENSTOCK_DATABASE_URL": "postgresql://localhost/none"}
    return CliRunner().invoke(app, rest, env=login | services)


@proves("the chart")
@pytest.mark.parametrize("name", VALUES["programs"])
def test_each_program_takes_its_arguments_and_its_file(name: str, tmp_path: Path) -> None:
    """As the template puts them together; the program itself says whether it would start."""
    program = VALUES["programs"][name]
    config = dict(program.get("config", {}))
    file = ["--config", PLACE] if config else []
    if "relays" in config:
        empty = check([*program["command"], *file, *ADDED], yaml.safe_dump(config), tmp_path)
        assert "goes together with the option --relay" in str(empty.exception)
        config["relays"] = {"export": f"jsonl:{tmp_path}"}
    done = check([*program["command"], *file, *ADDED], yaml.safe_dump(config), tmp_path)
    assert done.exit_code == 0, done.exception
    template = (CHART / "templates" / "programs.yaml").read_text()
    for added in (f'"--config" "{PLACE}"', *(f'"{each}"' for each in ADDED)):
        assert added in template


@proves("the chart")
def test_no_pod_gets_the_addresses_of_services() -> None:
    """A service penstock-gateway would set an option of the gateway."""
    pod = (CHART / "templates" / "_pod.tpl").read_text().partition('define "penstock.pod"')[2]
    assert "\nenableServiceLinks: false\n" in pod


def rendered(chart: Path, *options: str) -> str:
    """What Helm makes of it."""
    command = ["template", "shop", str(chart), "--kube-version", kubernetes.VERSION, *options]
    try:
        helm = kubernetes.program("helm")
    except ServerUnavailable as error:
        missing("Helm", error)
    return subprocess.run(
        [helm, *command], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def conforms(text: str) -> bool:
    """Whether Kubernetes' schemas take it, strictly."""
    try:
        program, folder = kubernetes.program("kubeconform"), kubernetes.schemas(KINDS)
    except ServerUnavailable as error:
        missing("kubeconform", error)
    where = f"{folder}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    done = subprocess.run(
        [program, "-strict", "-schema-location", where], input=text, capture_output=True,
        text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode == 0


@pytest.mark.long
@pytest.mark.timeout(1800)
@proves("the chart")
@pytest.mark.parametrize("options", [[], EVERYTHING, ["--set=migrate.enabled=false"]])
def test_kubernetes_takes_what_it_makes(options: list[str]) -> None:
    text = rendered(CHART, *options)
    assert conforms(text)
    assert not conforms(text.replace("readinessProbe:", "readynessProbe:"))
    assert not conforms(text.replace("replicas: 2", "replicas: two"))


@pytest.mark.long
@pytest.mark.timeout(1800)
@proves("the chart")
def test_each_program_starts_as_it_is_rendered(tmp_path: Path) -> None:
    made = [each for each in yaml.safe_load_all(rendered(CHART, *EVERYTHING)) if each]
    files = {
        each["metadata"]["name"]: each["data"]["config.yaml"]
        for each in made if each["kind"] == "ConfigMap"
    }  # fmt: skip
    started = []
    for each in made:
        if each["kind"] == "Deployment":
            pod = each["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            mounted = {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v}
            name = each["metadata"]["name"]
            assert (name in mounted) == (name in files) == (PLACE in container["args"])
            done = check(container["args"], files.get(name), tmp_path)
            assert done.exit_code == 0, (name, done.exception)
            started.append(container["name"])
    assert set(started) == set(VALUES["programs"])


@pytest.mark.long
@pytest.mark.timeout(1800)
@proves("the chart")
def test_a_relay_without_relays_is_refused_by_helm() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered(CHART, "--set=programs.relay.enabled=true")
    assert "programs.relay.config.relays is empty" in refused.value.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
@proves("the chart")
def test_every_container_is_bounded_and_without_rights() -> None:
    made = [each for each in yaml.safe_load_all(rendered(CHART, *EVERYTHING)) if each]
    kinds = [each["kind"] for each in made]
    programs = len(VALUES["programs"])
    for kind in ("Deployment", "PodDisruptionBudget", "Service"):
        assert kinds.count(kind) == programs
    pods = [
        each["spec"]["template"]["spec"] for each in made if each["kind"] in {"Deployment", "Job"}
    ]
    assert len(pods) == programs + 1
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
        assert pod["enableServiceLinks"] is False
        (container,) = pod["containers"]
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
        assert container["resources"]["limits"]["memory"]
        assert container["envFrom"] == [{"secretRef": {"name": "penstock-secrets"}}]
        assert container["image"].endswith(f":{penstock.__version__}")
        if container["name"] != "migrate":
            assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
            assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"

"""The chart of deploy/helm/penstock: rendered by Helm, compared with the schemas of Kubernetes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import penstock
from tests.house.test_deploy import DEPLOY, _help
from tests.kit.proof import proves
from tests.support import missing
from tools.servers import kubernetes
from tools.servers.errors import ServerUnavailable

CHART = DEPLOY / "helm" / "penstock"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
KINDS = ("deployment-apps-v1", "job-batch-v1", "poddisruptionbudget-policy-v1", "service-v1")
EVERYTHING = [
    "--set=policies=penstock-policies",
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
        (container,) = pod["containers"]
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
        assert container["resources"]["limits"]["memory"]
        assert container["envFrom"] == [{"secretRef": {"name": "penstock-secrets"}}]
        assert container["image"].endswith(f":{penstock.__version__}")
        if container["name"] != "migrate":
            assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
            assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"

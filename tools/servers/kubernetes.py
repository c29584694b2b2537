"""Helm renders the chart, and kubeconform compares it with the schemas of Kubernetes.

No cluster is needed.  Both are built by Go; the schemas are those that a Python package carries.
All lie in ``.penstock/servers/kubernetes``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.servers.distribution import HOME, locked
from tools.servers.errors import ServerUnavailable

#: Each program with the module that Go builds it from.
MODULES = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.19.0",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.6.7",
}
VERSION = "1.37.0"
_SCHEMAS = (
    f"kubernetes-validate=={VERSION}"
    " --hash=sha256:85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
)
_PACKED = f"kubernetes_validate/kubernetes-json-schema/v{VERSION}-local-strict"
_SECONDS = 1200


def program(name: str, home: Path = HOME) -> str:
    """A program, built now if it is not here."""
    folder = home / "kubernetes"
    folder.mkdir(parents=True, exist_ok=True)
    found = folder / name
    with locked(folder / f".{name}.lock"):
        if not found.exists():
            if shutil.which("go") is None:
                raise ServerUnavailable(f"no {name}: Go builds it", hint="install Go 1.24 or newer")
            _run(
                ["go", "install", MODULES[name]],
                {"GOBIN": str(folder), "GOFLAGS": os.environ.get("GOFLAGS", "")},
            )
    return str(found)


def schemas(kinds: Sequence[str], home: Path = HOME) -> Path:
    """A folder with the schema of each kind, such as ``deployment-apps-v1``, whole in one file."""
    folder = home / "kubernetes" / "schemas"
    wanted = [kind for kind in kinds if not (folder / f"{kind}.json").exists()]
    if wanted:
        wheels = folder / "wheels"
        wheels.mkdir(parents=True, exist_ok=True)
        (wheels / "requirements.txt").write_text(f"{_SCHEMAS}\n")
        _run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                "--require-hashes", "-d", str(wheels), "-r", str(wheels / "requirements.txt"),
            ],
            {},
        )  # fmt: skip
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            _unpack(archive, wanted, folder)
        shutil.rmtree(wheels)
    return folder


def _unpack(archive: zipfile.ZipFile, kinds: Sequence[str], folder: Path) -> None:
    """Put what a schema refers to into its own file: kubeconform does not look elsewhere."""
    definitions = _read(archive, "_definitions")["$defs"]
    for kind in kinds:
        schema = _read(archive, kind) | {"$defs": definitions}
        for name in ("$schema", "$id"):
            schema.pop(name, None)
        text = json.dumps(schema).replace("/api/_definitions.json#", "#")
        (folder / f"{kind}.json").write_text(text)


def _read(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(archive.read(f"{_PACKED}/{name}.json"))
    return found


def _run(command: Sequence[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_SECONDS,
        env={**os.environ, **environment},
    )  # fmt: skip
    if done.returncode != 0:
        raise ServerUnavailable(f"{' '.join(command[:2])} failed: {done.stderr[-2000:]}")

"""Programs of others that long tests run as clients: fetched once, below ``.penstock/clients``."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from tools.servers.distribution import locked
from tools.servers.jars import Jars

HOME = Path(__file__).resolve().parents[1] / ".penstock" / "clients"
_STAMP = ".complete"
_SECONDS = 900
_SHOWN = 800


class ClientUnavailable(PenstockError):
    """A client that cannot be had here."""


@dataclass(frozen=True, slots=True)
class Packages(ABC):
    """Packages of a registry in a folder of their own."""

    name: str

    def folder(self, home: Path = HOME) -> Path:
        """Where they are, fetched now if they are missing or others are wanted."""
        found = home / self.name
        mark = hashlib.sha256(self._wanted().encode()).hexdigest()
        home.mkdir(parents=True, exist_ok=True)
        with locked(home / f".{self.name}.lock"):
            stamp = found / _STAMP
            if not stamp.is_file() or stamp.read_text() != mark:
                shutil.rmtree(found, ignore_errors=True)
                found.mkdir()
                self._fetch(found)
                stamp.write_text(mark)
        return found

    @abstractmethod
    def _wanted(self) -> str:
        """What they are made of: when it changes, they are fetched anew."""

    @abstractmethod
    def _fetch(self, folder: Path) -> None:
        """Put them into the folder."""


@dataclass(frozen=True, slots=True)
class PythonPackages(Packages):
    """Programs in Python that must not meddle with the environment of the tests."""

    requirements: tuple[str, ...]

    def environment(self) -> dict[str, str]:
        """In which this Python finds them before its own."""
        return os.environ | {"PYTHONPATH": str(self.folder())}

    def _wanted(self) -> str:
        return "\n".join((sys.version, *self.requirements))

    def _fetch(self, folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        _run([*pip, "--no-compile", "--target", str(folder), *self.requirements])


@dataclass(frozen=True, slots=True)
class NodePackages(Packages):
    """What a ``package.json`` names, by the npm of the machine."""

    description: Path

    def _wanted(self) -> str:
        return self.description.read_text()

    def _fetch(self, folder: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise ClientUnavailable("there is no npm", hint="install Node.js 20 or newer")
        shutil.copy(self.description, folder / "package.json")
        options = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
        _run([npm, "install", *options, "--prefix", str(folder)])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClientUnavailable(f"{command[0]} does not work here: {error}") from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-_SHOWN:]
        raise ClientUnavailable(f"they could not be fetched: {said}")


_SDKS = Path(__file__).resolve().parents[1] / "tests" / "gateway" / "sdks"
AWS_CLI = PythonPackages("aws-cli", ("awscli==1.46.3",))
CELERY = PythonPackages("celery", ("celery[sqs]==5.7.0", "kombu[sqs]==5.7.0"))
SCHEMATHESIS = PythonPackages("schemathesis", ("schemathesis==4.32.5",))
AWS_FOR_JAVASCRIPT = NodePackages("aws-for-javascript", _SDKS / "package.json")
AWS_FOR_JAVA = Jars("aws-for-java", "the AWS SDK for Java", (_SDKS / "pom.xml",))

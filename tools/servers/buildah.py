"""Debian's buildah builds and runs images without a daemon, in a folder of ours.

The base image is a bare Debian, made by mmdebstrap from this machine's own sources.  Both programs
are unpacked into ``.penstock/servers``; both need root, because they enter other roots.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.debian import DebianUnavailable, library_directories, source_line, unpack
from tools.servers.distribution import HOME, locked
from tools.servers.errors import ServerUnavailable

SUITE = "bookworm"
BASE = "localhost/penstock-base"
#: As in the slim images of Debian: what only a person at a terminal reads is left out.
_LEFT_OUT = ("doc", "info", "lintian", "locale", "man")
#: The machine's own certificates: a build reaches what the machine reaches.
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
#: usrmerge needs all of Perl, and its work is done.
_WITHOUT_PERL = (
    "apt-get -qq install usr-is-merged && apt-get -qq --auto-remove purge usrmerge perl"
    " perl-modules-5.36 libperl5.36"
)
_LIBRARIES = ("libassuan", "libdevmapper", "libgpg-error", "libgpgme", "libseccomp", "libsubid")
_SECONDS = 1800
_SHOWN = 3000


class Buildah:
    """Images and containers in one folder; `close` takes all of them away."""

    def __init__(self, folder: Path, home: Path = HOME) -> None:
        if os.geteuid() != 0:
            raise ServerUnavailable(
                "buildah needs root here, because it runs programs in another root",
                hint="run the tests as root, in a container for example",
            )
        self._folder, self._home = folder, home
        self._program = _program(home)
        (folder / "tmp").mkdir(exist_ok=True)
        (folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')

    def import_base(self) -> None:
        """Make a bare Debian the image ``BASE``."""
        container = self.call("from", "scratch")
        self.call("add", container, str(_base(self._home)), "/")
        self.call("commit", *self._policy(), "--format", "docker", container, BASE)
        self.call("rm", container)

    def build(self, file: Path, context: Path, target: str, image: str) -> None:
        """Build a target of a container file on the base."""
        self.call(
            "bud", *self._policy(), "--isolation", "chroot", "--network", "host", "--layers",
            "--format", "docker", "--build-arg", f"BASE={BASE}", "-f", str(file),
            "--target", target, "-t", image, str(context),
        )  # fmt: skip

    def container(self, image: str) -> str:
        """A container of an image, and its name."""
        return self.call("from", *self._policy(), f"localhost/{image}")

    def running(
        self, container: str, *command: str, environment: Mapping[str, str], volumes: Sequence[str]
    ) -> list[str]:
        """The command that runs a program in a container, as the user of its image."""
        told = [part for each in volumes for part in ("--volume", each)]
        for name, value in environment.items():
            told += ["--env", f"{name}={value}"]
        return [
            *self._command(), "run", "--isolation", "chroot", "--network", "host", *told,
            container, "--", *command,
        ]  # fmt: skip

    def configuration(self, image: str) -> dict[str, object]:
        """What an image says of itself: user, environment, entry point."""
        found = json.loads(self.call("inspect", "--type", "image", f"localhost/{image}"))
        return dict(found["Docker"]["config"])

    def sizes(self, image: str) -> tuple[int, int]:
        """The bytes of an image, as they are pulled and unpacked."""
        packed = self._folder / "packed"
        self.call("push", *self._policy(), f"localhost/{image}", f"oci:{packed}")
        pulled = sum(each.stat().st_size for each in packed.glob("blobs/sha256/*"))
        shutil.rmtree(packed)
        found = json.loads(self.call("images", "--json", f"localhost/{image}"))
        unpacked = found[0]["size"]
        return pulled, _bytes(unpacked)

    def call(self, *arguments: str) -> str:
        """Run buildah; what it says last."""
        done = subprocess.run(
            [*self._command(), *arguments], capture_output=True, text=True, check=False,
            timeout=_SECONDS,
        )  # fmt: skip
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-_SHOWN:]
            raise ServerUnavailable(f"buildah {arguments[0]} failed:\n{said}")
        return done.stdout.strip()

    def close(self) -> None:
        """Remove containers and images, and the mount that buildah leaves."""
        self.call("rm", "--all")
        self.call("rmi", "--all", "--force")
        storage = self._folder / "root" / "overlay"
        if storage.is_mount():
            subprocess.run(["umount", str(storage)], check=True)

    def _command(self) -> list[str]:
        # What a killed container leaves in the folder for temporary files goes with ours.
        return [
            "env", f"TMPDIR={self._folder / 'tmp'}", self._program, "--registries-conf",
            "/dev/null", "--root", str(self._folder / "root"),
            "--runroot", str(self._folder / "run"),
        ]  # fmt: skip

    def _policy(self) -> list[str]:
        return ["--signature-policy", str(self._folder / "policy.json")]


def _bytes(size: str) -> int:
    """What `buildah images` says for a person."""
    number, unit = size.split()
    return int(float(number) * {"KB": 1e3, "MB": 1e6, "GB": 1e9}[unit])


def _program(home: Path) -> str:
    """The buildah of this machine, else Debian's with its libraries beside it."""
    found = shutil.which("buildah")
    if found is not None:
        return found
    root = _unpacked(["buildah", "patchelf"], home / "buildah")
    program, own = root / "usr" / "bin" / "buildah", root / "own"
    with locked(home / ".buildah.lock"):
        if not own.exists():
            _point_at(program, root, own)
    return str(program)


def _point_at(program: Path, root: Path, own: Path) -> None:
    """Let the program find its libraries by itself: it starts itself again without variables.

    Not the C library, which has to be that of the loader.
    """
    unfinished = root / "own.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for folder in library_directories(root):
        for each in folder.glob("*.so.*"):
            if each.name.startswith(_LIBRARIES):
                (unfinished / each.name).symlink_to(each)
    patchelf = root / "usr" / "bin" / "patchelf"
    subprocess.run([str(patchelf), "--set-rpath", str(own), str(program)], check=True)
    unfinished.rename(own)


def _base(home: Path) -> Path:
    """A bare Debian as an archive, made once."""
    target = home / f"{SUITE}.tar"
    root = _unpacked(["mmdebstrap"], home / "mmdebstrap")
    if shutil.which("perl") is None:
        raise ServerUnavailable("mmdebstrap needs perl", hint="apt-get install perl")
    with locked(home / ".base.lock"):
        if not target.exists():
            unfinished = target.with_suffix(".unfinished.tar")
            _bootstrap(root, unfinished)
            unfinished.rename(target)
    return target


def _bootstrap(root: Path, target: Path) -> None:
    options = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in _LEFT_OUT]
    options.append("--dpkgopt=path-include=/usr/share/doc/*/copyright")
    done = subprocess.run(
        [
            "perl", f"-I{root / 'usr/share/perl5'}", str(root / "usr/bin/mmdebstrap"),
            "--variant=minbase", "--mode=root", "--include=ca-certificates", *options,
            f'--customize-hook=chroot "$1" sh -c "{_WITHOUT_PERL}"',
            f'--customize-hook=cp {_CERTIFICATES} "$1{_CERTIFICATES}"', SUITE, str(target), "-",
        ],
        input=source_line(SUITE), capture_output=True, text=True, check=False, timeout=_SECONDS,
        env={**os.environ, "PATH": f"{os.environ['PATH']}:{root / 'usr/bin'}"},
    )  # fmt: skip
    if done.returncode != 0:
        target.unlink(missing_ok=True)
        raise ServerUnavailable(f"mmdebstrap failed:\n{done.stderr[-_SHOWN:]}")


def _unpacked(packages: Sequence[str], root: Path) -> Path:
    try:
        return unpack(packages, SUITE, root)
    except (DebianUnavailable, OSError) as error:
        raise ServerUnavailable(
            f"no {packages[0]}: it cannot be had from Debian {SUITE} ({error})",
            hint=f"check that apt-get reaches its archive, or apt-get install {packages[0]}",
        ) from error

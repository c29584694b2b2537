"""Unpack Debian packages into a folder of our own: without rights, without touching the system.

apt gets a state of its own, so that it downloads a package with all that it depends on, and
``dpkg-deb -x`` unpacks the archives into one root.  Where the packages come from is read from this
machine's apt configuration at run time.

    python -m tools.debian SUITE ROOT PACKAGE...
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

APT = Path("/etc/apt")
COMPONENTS = "main"
DEFAULT_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
STAMP = ".unpacked"


class DebianUnavailable(Exception):
    """Packages cannot be downloaded here.  The text says why, in one line."""


def unpack(packages: Sequence[str], suite: str, root: Path) -> Path:
    """Unpack the packages and all that they need into ``root``, once.

    Returns ``root``. The unpacked tree replaces ``root`` as a whole when it is complete. So a run
    that was interrupted leaves nothing that looks finished.
    """
    root = root.absolute()
    root.parent.mkdir(parents=True, exist_ok=True)
    wanted = f"{suite} {' '.join(sorted(packages))}\n"
    with (root.parent / f".{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = root / STAMP
        if stamp.exists() and stamp.read_text() == wanted:
            return root
        work = root.parent / f".{root.name}.apt"
        unfinished = root.parent / f".{root.name}.unfinished"
        for leftover in (work, unfinished, root):
            shutil.rmtree(leftover, ignore_errors=True)
        _download_and_unpack(packages, suite, work, unfinished)
        _keep_links_inside(unfinished)
        (unfinished / STAMP).write_text(wanted)
        unfinished.rename(root)
        shutil.rmtree(work, ignore_errors=True)
    return root


def library_directories(root: Path) -> list[Path]:
    """Where the tree keeps its shared libraries (``usr/lib/x86_64-linux-gnu``)."""
    triplet = f"{os.uname().machine}-linux-gnu"
    return [each for each in (root / "usr/lib" / triplet, root / "lib" / triplet) if each.is_dir()]


def through_own_loader(root: Path, program: str, *more_libraries: str) -> list[str]:
    """The first words of a command that runs a newer suite's program with its own libraries."""
    found = library_directories(root)
    libraries = [*found, *(root / each for each in more_libraries)]
    loaders = [loader for each in found for loader in sorted(each.glob("ld-linux-*.so.*"))]
    if not loaders:
        raise DebianUnavailable(f"{root} holds no loader; libc6 was not unpacked")
    return [
        str(loaders[0]),
        "--library-path",
        ":".join(map(str, libraries)),
        str(root / program),
    ]


def _download_and_unpack(packages: Sequence[str], suite: str, work: Path, target: Path) -> None:
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise DebianUnavailable(f"{tool} is not installed: this is not a Debian machine")
    options = _private_apt(work, suite)
    _run(["apt-get", *options, "-qq", "update"])
    _run(["apt-get", *options, "-qq", "--yes", "--download-only", "install", *packages])
    archives = sorted((work / "cache" / "archives").glob("*.deb"))
    if not archives:
        raise DebianUnavailable(f"apt downloaded nothing for {', '.join(packages)}")
    target.mkdir()
    for archive in archives:
        _run(["dpkg-deb", "-x", str(archive), str(target)])


def _keep_links_inside(root: Path) -> None:
    """Point absolute links into the tree.  Packages expect to be unpacked at the machine's root."""
    for folder, folders, files in os.walk(root):
        for path in (Path(folder) / name for name in [*folders, *files]):
            if not path.is_symlink():
                continue
            target = path.readlink()
            inside = root / str(target).lstrip("/")
            if target.is_absolute() and (inside.exists() or inside.is_symlink()):
                path.unlink()
                path.symlink_to(os.path.relpath(inside, path.parent))


def _private_apt(work: Path, suite: str) -> list[str]:
    """Directories for an apt that knows nothing of what the system has installed."""
    for each in ("state/lists/partial", "cache/archives/partial", "etc"):
        (work / each).mkdir(parents=True)
    (work / "status").touch()
    (work / "etc" / "sources.list").write_text(source_line(suite))
    settings = {
        "Dir::State": work / "state",
        "Dir::State::lists": work / "state" / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "Dir::Etc::sourcelist": work / "etc" / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Install-Recommends": "false",
        "APT::Get::AllowUnauthenticated": "false",
        "Acquire::Retries": "3",
        "Acquire::Languages": "none",
    }
    if os.geteuid() == 0:
        # apt's own user cannot enter a checkout below a directory that is closed to it.
        settings["APT::Sandbox::User"] = "root"
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def source_line(suite: str) -> str:
    """A line of sources.list for a suite, out of this machine's own sources."""
    for uri, keyring in _debian_sources():
        return f"deb [signed-by={keyring or DEFAULT_KEYRING}] {uri} {suite} {COMPONENTS}\n"
    raise DebianUnavailable("the apt configuration of this machine names no Debian archive")


def _debian_sources() -> Iterator[tuple[str, str]]:
    """(URI, keyring) of the machine's own Debian sources, in both file formats of apt."""
    parts = APT / "sources.list.d"
    for path in sorted(parts.glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            yield from _from_stanza(stanza)
    for path in [APT / "sources.list", *sorted(parts.glob("*.list"))]:
        if path.exists():
            yield from _from_lines(path.read_text())


def _from_stanza(stanza: str) -> Iterator[tuple[str, str]]:
    pairs = (line.split(":", 1) for line in stanza.splitlines() if re.match(r"[\w-]+:", line))
    fields = {name.strip().lower(): value.strip() for name, value in pairs}
    for uri in fields.get("uris", "").split():
        if fields.get("enabled", "yes").lower() != "no" and _is_debian(uri):
            yield uri, _keyring(fields.get("signed-by", ""))


def _from_lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        found = re.match(r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)", line.strip())
        if found and _is_debian(found["uri"]):
            signed = re.search(r"signed-by=(\S+)", found["options"] or "")
            yield found["uri"], _keyring(signed[1] if signed else "")


def _keyring(signed_by: str) -> str:
    """A keyring file.  For a key inside the source itself, the default keyring is used."""
    return signed_by if signed_by.startswith("/") else ""


def _is_debian(uri: str) -> bool:
    """Whether it is Debian's main archive: only that one has a path that ends in /debian."""
    return uri.rstrip("/").endswith("/debian")


def _run(command: Sequence[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != 0:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = said[-1] if said else f"exit code {done.returncode}"
        raise DebianUnavailable(f"{command[0]} failed: {reason}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.debian", description=__doc__)
    parser.add_argument("suite")
    parser.add_argument("root", type=Path)
    parser.add_argument("packages", nargs="+")
    options = parser.parse_args(arguments)
    try:
        print(unpack(options.packages, options.suite, options.root))
    except DebianUnavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

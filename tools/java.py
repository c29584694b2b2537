"""Find a Java 17 or newer, or unpack one from Debian packages into ``.penstock/java``.

python -m tools.java --print-home
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.debian import DebianUnavailable, unpack

NEEDED = 17
PACKAGE = "openjdk-17-jre-headless"
SUITE = "bookworm"
DEFAULT_DIRECTORY = Path(__file__).resolve().parents[1] / ".penstock" / "java"

JKS_MAGIC = 0xFEEDFEED
JKS_VERSION = 2
JKS_TRUSTED_CERTIFICATE = 2
JKS_PASSWORD = "changeit"
JKS_SALT = b"Mighty Aphrodite"


class JavaMissing(Exception):
    """There is no Java and none can be unpacked.  The text says in one line what to install."""


def home(directory: Path = DEFAULT_DIRECTORY) -> Path:
    """The home of a usable Java: that of JAVA_HOME, of PATH, or an unpacked one."""
    for program in _candidates():
        found = _home_of(program)
        if found is not None:
            return found
    return _unpacked(directory)


def _candidates() -> Iterator[str]:
    given = os.environ.get("JAVA_HOME")
    if given:
        yield str(Path(given) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        yield on_path


def _home_of(program: Path | str) -> Path | None:
    """The home that a ``java`` reports, if it is new enough.

    The program may be a link or a shim.
    """
    try:
        done = subprocess.run(
            [str(program), "-XshowSettings:properties", "-version"],
            capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stderr + done.stdout
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", said)
    where = re.search(r"java\.home = (.+)", said)
    if done.returncode != 0 or version is None or where is None or int(version[1]) < NEEDED:
        return None
    return Path(where[1].strip())


def _unpacked(directory: Path) -> Path:
    hint = f"install Java {NEEDED} (on Debian: apt-get install {PACKAGE}) or set JAVA_HOME"
    try:
        root = unpack([PACKAGE], SUITE, directory)
    except (DebianUnavailable, OSError) as error:
        raise JavaMissing(
            f"no Java {NEEDED} found and none could be unpacked ({error}); {hint}"
        ) from error
    for java in sorted(root.glob("usr/lib/jvm/java-*/bin/java")):
        found = _home_of(java)
        if found is not None:
            _provide_certificates(found / "lib" / "security" / "cacerts")
            return found
    raise JavaMissing(f"the Java that was unpacked into {root} does not run; {hint}")


def _provide_certificates(path: Path) -> None:
    """Give the unpacked Java the machine's certificates.

    The package's script does so on install.
    """
    if path.exists():
        return
    path.unlink(missing_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(java_key_store(ssl.create_default_context().get_ca_certs(True)))
    unfinished.replace(path)


def java_key_store(certificates: Sequence[bytes]) -> bytes:
    """A key store in Java's own format (JKS) that trusts these certificates (DER)."""
    body = struct.pack(">III", JKS_MAGIC, JKS_VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", JKS_TRUSTED_CERTIFICATE)
        body += _java_text(f"authority-{number}") + struct.pack(">q", 0)
        body += _java_text("X.509") + struct.pack(">I", len(certificate)) + certificate
    return body + hashlib.sha1(JKS_PASSWORD.encode("utf-16-be") + JKS_SALT + body).digest()


def _java_text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.java", description=__doc__)
    parser.add_argument("--print-home", action="store_true", required=True)
    parser.parse_args(arguments)
    try:
        print(home())
    except JavaMissing as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Debian packages unpacked without rights, and the Java in them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools import debian, java

# The address of an archive, as an apt configuration holds it; none is ever asked.
ARCHIVE = "http://archive.example/debian"

STANZAS = f"""\
Types: deb
URIs: http://archive.example/debian-security
Suites: stable-security
Signed-By: /usr/share/keyrings/security.gpg

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: stable

Types: deb
URIs: {ARCHIVE}/
Suites: stable stable-updates
Components: main
Signed-By: /usr/share/keyrings/own.gpg
"""

LINES = f"""\
# deb http://commented.example/debian stable main
deb http://vendor.example/apt stable main
deb [arch=amd64 signed-by=/usr/share/keyrings/own.gpg] {ARCHIVE} stable main
"""


@pytest.mark.parametrize(
    ("file", "text", "uri"),
    [
        ("sources.list.d/debian.sources", STANZAS, f"{ARCHIVE}/"),
        ("sources.list", LINES, ARCHIVE),
        ("sources.list.d/more.list", LINES, ARCHIVE),
    ],
)
def test_the_archive_is_read_from_the_machines_own_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, uri: str
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    monkeypatch.setattr(debian, "APT", tmp_path)
    line = debian.source_line("trixie")
    assert line == f"deb [signed-by=/usr/share/keyrings/own.gpg] {uri} trixie main\n"


def test_a_machine_without_a_debian_archive_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian, "APT", tmp_path)
    with pytest.raises(debian.DebianUnavailable, match="names no Debian archive"):
        debian.source_line("trixie")


def test_absolute_links_are_turned_inwards(tmp_path: Path) -> None:
    (tmp_path / "etc" / "java").mkdir(parents=True)
    (tmp_path / "etc" / "java" / "conf").write_text("inside")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "conf").symlink_to("/etc/java/conf")
    (tmp_path / "lib" / "all").symlink_to("/etc/java")
    (tmp_path / "lib" / "system").symlink_to("/etc/only-on-the-machine")
    debian._keep_links_inside(tmp_path)
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert (moved / "lib" / "conf").read_text() == "inside"
    assert (moved / "lib" / "all" / "conf").read_text() == "inside"
    assert (moved / "lib" / "system").readlink() == Path("/etc/only-on-the-machine")


def test_without_java_and_without_debian_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(java.JavaMissing, match="apt-get install openjdk-17-jre-headless") as raised:
        java.home(tmp_path / "java")
    assert "\n" not in str(raised.value)


def test_a_java_home_that_does_not_run_is_passed_over(
    java_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(java_home / "bin"), prepend=os.pathsep)
    assert java.home() == java_home


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'java.specification.version = 1.8\njava.home = /usr/lib/old'\n")
    old.chmod(0o755)
    assert java._home_of(old) is None


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_java_is_unpacked_where_none_is_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("apt-get") is None:
        pytest.skip("needs apt")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "_candidates", lambda: iter(()))
    home = java.home(tmp_path / "java")
    assert home.is_relative_to(tmp_path)
    assert (home / "lib" / "security" / "cacerts").exists()
    subprocess.run([str(home / "bin" / "java"), "-version"], check=True, capture_output=True)

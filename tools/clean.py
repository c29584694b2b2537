"""`make clean`: stop the embedded databases below ``.penstock`` and remove what runs have left.

The environment and the downloads stay.  ``--all`` removes them too.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from resources.embedded import EmbeddedPostgres
from tools import memory
from tools.servers import catalogue

HOME = Path(__file__).resolve().parents[1] / ".penstock"
DOWNLOADED = {"venv", "java", "pip", "pulsar", "maven", "servers"}


def main() -> int:
    """The command line."""
    everything = "--all" in sys.argv[1:]
    of_killed_tests = memory.MEMORY.glob(memory.folder().name)
    for path in [*HOME.glob("*"), *of_killed_tests]:
        if not everything and path.name in DOWNLOADED:
            continue
        for pid_file in path.glob("**/postmaster.pid"):
            EmbeddedPostgres(pid_file.parent.parent).stop()
        for state in path.glob("**/server.json"):
            catalogue.in_folder(state).stop()
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Programs that use Spark elsewhere, over Connect or on a cluster, and have no checkout."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ops.seal import seal
from penstock.archive.targets import Target
from tests.contract.databases import ContractDatabase
from tests.kit.copies import copy_all, drop
from tests.kit.log import TOPIC

#: The end of such a program: it counts, retention drops all that is sealed, and it counts again.
MID_JOB = """
whole = options(spark.read.format("penstock"), source).option("eventsPerTask", 50)
whole = whole.option("targets", targets).load()
told["whole"] = [whole.count()]
print("planned", flush=True)
sys.stdin.readline()
told["whole"].append(whole.count())
print(json.dumps(told))
spark.stop()
"""


def run_far(
    db: ContractDatabase, command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> Any:
    """What a program tells that ends with MID_JOB; its last argument is the archive."""
    target = Target("nas", str(folder / "nas"))
    errors = folder / "errors.log"
    with closing(db.connect()) as own, errors.open("wb") as stream:
        seal(own, TOPIC, max_events=100, max_age_seconds=0)
        copy_all(own, TOPIC, target)
        with subprocess.Popen(
            [*command, json.dumps({target.name: target.uri})],
            env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=stream, text=True,
        ) as run:  # fmt: skip
            assert run.stdin is not None
            assert run.stdout is not None
            assert "planned\n" in iter(run.stdout.readline, ""), errors.read_text()[-4_000:]
            drop(own, TOPIC, [target])
            said, _ = run.communicate("go on\n")
    assert run.returncode == 0, errors.read_text()[-4_000:]
    return json.loads(said.splitlines()[-1])

"""The runs of `make demo` as Dagster's pages show them."""

from __future__ import annotations

import dagster as dg
import pytest

from tests.dagster.conftest import House
from tools.demo import platform
from tools.demo.stage import DemoFailed

#: What the pages call the code location of `workspace.yaml`.
DEMO_LABEL = "__repository__@penstock"


def test_the_runs_of_the_demo_are_those_of_the_jobs(house: House) -> None:
    """The timeline and the page of a job go by the origin: without it they leave a run out."""
    platform._execute(house.defs, house.instance, "sweep", tags={"of": "the demo"})
    (run,) = house.instance.get_runs(dg.RunsFilter(tags={".dagster/repository": DEMO_LABEL}))
    assert (run.job_name, run.status) == ("sweep", dg.DagsterRunStatus.SUCCESS)
    assert run.remote_job_origin is not None
    assert run.remote_job_origin.repository_origin.get_label() == DEMO_LABEL
    assert run.tags["of"] == "the demo" and run.tags["penstock/control-plane"]


def test_a_run_of_the_demo_that_fails_ends_it(house: House) -> None:
    (house.folder / "policies.yaml").write_text("topics: [")
    with pytest.raises(DemoFailed, match="the job policies failed"):
        platform._execute(house.defs, house.instance, "policies")

"""placeholder until dagster_project is there"""

from __future__ import annotations


def run(stage, outcome): ...

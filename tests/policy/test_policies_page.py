"""The tables of docs/reference/policies.md are made from every record of the policy file."""

from __future__ import annotations

from dataclasses import is_dataclass

from ops.policies import settings
from tools.option_tables import SECTIONS, comments, policy_file


def test_every_record_with_settings_of_the_file_is_on_the_page() -> None:
    records = [each for each in vars(settings).values() if is_dataclass(each)]
    own = [each for each in records if each.__module__ == settings.__name__]
    assert {each for each in own if settings.table(each)} == set(SECTIONS.values())


def test_a_row_says_what_a_setting_may_be_and_means() -> None:
    """Also where its comment has two lines, and its type too."""
    rows = policy_file().splitlines()
    (copies,) = (row for row in rows if "`copies` | 1 |" in row)
    assert "| 1 to 100 | Nothing with fewer verified copies is removed. |" in copies
    (late,) = (row for row in rows if "`copy_timeout`" in row)
    assert "| 10m | a duration, up to 36500d |" in late
    assert ("rules",) in comments(settings.RelayPolicy)

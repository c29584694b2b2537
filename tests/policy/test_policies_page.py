"""The tables of docs/reference/policies.md have every setting and its bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, is_dataclass
from pathlib import Path

from ops.policies import settings
from ops.policies.settings import FileSetting, table
from penstock.subscriptions.policies import SETTINGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "policies.md"

SECTIONS = {
    "targets.NAME": settings.TargetSettings,
    "topics.NAME.seal": settings.SealPolicy,
    "topics.NAME.archive": settings.ArchiveSettings,
    "topics.NAME.retention": settings.RetentionPolicy,
    "relays.NAME": settings.RelayPolicy,
    "relay_groups.NAME": settings.RelayGroupPolicy,
    "subscriptions.NAME": settings.SubscriptionSettings,
    "limits": settings.HealthLimits,
}
#: What the reader takes from elsewhere where the file does not say it.
IN_WORDS = {
    "topics.NAME.archive.targets": "required",
    "topics.NAME.archive.copies": "one on each target",
    "topics.NAME.archive.ack_quorum": "as many as copies",
    "relays.NAME.subscription": "the relay's name",
    "relay_groups.NAME.ack_quorum": "all of them",
}


def _rows(heading: str) -> Iterator[list[str]]:
    """The cells of a table; an empty first one is that of the row above."""
    first = ""
    _, _, rest = PAGE.read_text("utf-8").partition(f"| {heading} | setting |")
    for line in rest.partition("\n\n")[0].splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        first = cells[0] = (cells[0] or first).strip("`")
        yield [first, cells[1].strip("`"), *cells[2:]]


def _unset(place: str, said: str, setting: FileSetting, unset: object) -> str:
    """What the page has to say; the page's own words where the file's reader takes them so."""
    if place in IN_WORDS:
        return IN_WORDS[place]
    if unset is MISSING:
        return "required"
    if not unset:
        return "none"
    given = said.replace(",", "")
    read = setting.value.read(int(given) if given.isdecimal() else given, place)
    return said if read == unset else f"{unset}"


def test_the_page_has_every_setting_of_the_file_and_what_it_may_be() -> None:
    shown = list(_rows("in the file"))
    wanted = [
        (f"{place}.{name}", setting, unset)
        for place, record in SECTIONS.items()
        for name, (_, setting, unset) in table(record).items()
    ]
    assert [f"{place}.{name}" for place, name, *_ in shown] == [place for place, *_ in wanted]
    assert [row[2:4] for row in shown] == [
        [_unset(place, row[2], setting, unset), setting.value.form]
        for row, (place, setting, unset) in zip(shown, wanted, strict=True)
    ]


def test_every_record_with_settings_of_the_file_is_on_the_page() -> None:
    records = [each for each in vars(settings).values() if is_dataclass(each)]
    own = [each for each in records if each.__module__ == settings.__name__]
    assert {each for each in own if table(each)} == set(SECTIONS.values())


def test_the_page_has_every_setting_of_the_database_with_its_bounds() -> None:
    bounds = [
        [kind, name, str(of.preset), "", ""]
        if of.words
        else [kind, name, f"{of.preset:,}", f"{of.range.lowest:,}", f"{of.range.highest:,}"]
        for kind, settings_of_kind in SETTINGS.items()
        for name, of in settings_of_kind.items()
    ]
    assert [row[:5] for row in _rows("policy")] == bounds

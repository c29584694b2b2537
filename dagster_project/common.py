"""What the definitions share: retries, freshness, tables and plots for metadata."""

from __future__ import annotations

import base64
import datetime as dt
import functools
import gc
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, get_type_hints

import dagster as dg

from ops.policies.settings import TopicPolicy
from penstock.errors import PenstockError, error_text, lasts
from penstock.records import LogEpoch
from penstock.topics import names
from resources.database import DatabaseResource
from resources.targets import ArchiveTargetResource

F = TypeVar("F", bound=Callable[..., Any])

#: One Spark at a time on a small machine: `tools/dagster.yaml` gives every pool one slot.
SPARK_POOL = "spark"
HOUSE_GROUP = "operations"

#: Where a step failed because of the outside world, it is repeated in its run.
RETRY = dg.RetryPolicy(
    max_retries=2, delay=20, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
#: Dagster looks once a minute at most.
SHORTEST_FRESH_SECONDS = 60
#: A table in metadata has so many rows at most.
MOST_ROWS = 100
DATA_VERSION = "dagster/data_version"
#: So many new objects, and so many looks at the young ones before one at the older ones.
LOOK_FOR_GARBAGE_AFTER = (50_000, 20, 50)
#: The resources of which each database has its own.
_OF_DATABASE = (DatabaseResource, ArchiveTargetResource)
_HOUR_FORMAT = "%Y-%m-%d-%H:00"


def freshness(policy: TopicPolicy) -> dg.FreshnessPolicy | None:
    """At twice the age at which log epochs are sealed a warning, at four times a failure."""
    age = policy.seal.max_age_seconds if policy.seal else None
    if not age or age < SHORTEST_FRESH_SECONDS:
        return None
    return dg.FreshnessPolicy.time_window(
        fail_window=dt.timedelta(seconds=4 * age), warn_window=dt.timedelta(seconds=2 * age)
    )


def hour_name(time: dt.datetime) -> str:
    """The partition key of the hour of a time: ``2026-11-23-07:00``.

    Dagster takes a key with minutes for the hour after it, without a word.
    """
    return time.astimezone(dt.UTC).strftime(_HOUR_FORMAT)


def hour_of(name: str) -> dt.datetime:
    """The hour of a partition key."""
    return dt.datetime.strptime(name, _HOUR_FORMAT).replace(tzinfo=dt.UTC)


def of_database(name: str) -> Callable[[F], F]:
    """For a function with resources or a context: the resources of a database of the fleet.

    Its annotations become objects: Dagster cannot read those that are texts, as ours have to be.
    It stands directly above each such function.  An error that lasts until somebody changes
    something fails the step at once: its retry policy would only repeat it.
    """

    def bind(function: Callable[..., Any]) -> Any:
        function.__annotations__ = get_type_hints(function)

        def own(given: Mapping[str, Any]) -> dict[str, Any]:
            return {
                key: value.of(name) if isinstance(value, _OF_DATABASE) else value
                for key, value in given.items()
            }

        @functools.wraps(function)
        def once(*args: Any, **given: Any) -> Any:
            with _at_once():
                return function(*args, **own(given))

        @functools.wraps(function)
        def steps(*args: Any, **given: Any) -> Iterator[Any]:
            with _at_once():
                yield from function(*args, **own(given))

        # Dagster tells a function that yields from one that returns.
        return steps if inspect.isgeneratorfunction(function) else once

    return bind


@contextmanager
def _at_once() -> Iterator[None]:
    try:
        yield
    except PenstockError as error:
        if not lasts(error):
            raise
        raise dg.Failure(error_text(error), allow_retries=False) from error


def first_to_retry(errors: Sequence[Exception]) -> Exception:
    """Of several errors the one to raise: one that a repetition may mend, if there is any."""
    return next((each for each in errors if not lasts(each)), errors[0])


@contextmanager
def beta_allowed() -> Iterator[None]:
    """What Dagster calls beta or a preview, and we need: backfill policies, observable assets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        warnings.simplefilter("ignore", dg.PreviewWarning)
        yield


@contextmanager
def uncollected() -> Iterator[None]:
    """Makes what stays until the process ends, without looking for garbage among it.

    With 1,000 topics the collector takes a fifth of the time in which a code server or a run loads
    its definitions, and finds nothing.  Dagster goes on to make jobs of them, and a code server
    writes all of them down once a minute: so it looks less often from then on.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.set_threshold(*LOOK_FOR_GARBAGE_AFTER)
        gc.enable()


def no_event(key: dg.AssetKey | None = None) -> dg.MaterializeResult[None]:
    """The output of an asset that has logged its events itself, or of which there is nothing yet.

    An op of checks waits for the outputs of all assets of the run that it looks at.  Without one of
    them Dagster skips it, for the others too.  And it would give all partitions one data version.
    """
    # Not exported by `dagster`, which marks the output of observable source assets in this way.
    from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION

    metadata = {SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION: True}
    return dg.MaterializeResult(asset_key=key, metadata=metadata)


def made_of(inputs: Mapping[dg.AssetKey, str]) -> dict[str, str]:
    """For an event without a run: of which data versions it was made, as a run records it.

    Without them Dagster goes by the times, and calls an asset unsynced when an input is reported
    anew that has not changed.
    """
    # Not exported by `dagster`.
    from dagster._core.definitions import data_version as tags

    found = {tags.CODE_VERSION_TAG: HOUSE_GROUP}
    for key, version in inputs.items():
        found[tags.get_input_data_version_tag(key)] = version
        found[tags.get_input_event_pointer_tag(key)] = tags.NULL_EVENT_POINTER
    return found


@functools.cache
def code_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Where an asset is written, as metadata: looked up once for the assets of all topics."""
    with beta_allowed():
        place = dg.LocalFileCodeReference(
            file_path=inspect.getsourcefile(function) or "",
            line_number=function.__code__.co_firstlineno,
        )
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[place])}


def exists(connection: Any, topic: str) -> bool:
    """Whether the topic is in the database: the policy file may know it sooner."""
    return any(each.address == topic for each in names.list_topics(connection, _parent(topic)))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> dg.MarkdownMetadataValue:
    """A table for metadata."""
    rows = list(rows)
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        lines.append(f"\nand {len(rows) - MOST_ROWS} more")
    return dg.MetadataValue.md("\n".join(lines))


def plot(title: str, values: Sequence[float]) -> str:
    """A line through some values as an image that Dagster shows in Markdown."""
    width, height, top = 480, 90, max([*values, 1e-9])
    step = width / max(len(values) - 1, 1)
    points = " ".join(
        f"{n * step:.1f},{height - value / top * (height - 12):.1f}"
        for n, value in enumerate(values)
    )
    image = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height + 20}">'
        f'<polyline fill="none" stroke="#4f43dd" stroke-width="2" points="{points}"/>'
        f'<line x1="0" y1="{height}" x2="{width}" y2="{height}" stroke="#999"/>'
        f'<text x="0" y="{height + 15}" font-family="sans-serif" font-size="12" fill="#666">'
        f"{title}: now {values[-1] if values else 0:,.1f}, highest {top:,.1f}</text></svg>"
    )
    coded = base64.b64encode(image.encode()).decode()
    return f"![{title}](data:image/svg+xml;base64,{coded})"


def epoch_metadata(epochs: Sequence[LogEpoch]) -> dict[str, Any]:
    """The log epochs of an hour."""
    columns = ("partition", "log epoch", "first", "last", "sealed at", "copies on", "dropped")
    rows = (
        (e.partition, e.log_epoch, e.first_sequence, e.last_sequence,
         f"{e.sealed_at:%H:%M:%S}" if e.sealed_at else "", ", ".join(sorted(e.targets)),
         "yes" if e.dropped_at else "")
        for e in epochs
    )  # fmt: skip
    return {
        "log epochs": len(epochs),
        "dagster/row_count": sum(each.event_count for each in epochs),
        "which": table(columns, rows),
    }


def _parent(topic: str) -> str:
    return topic.rpartition("/")[0]


def _cell(value: Any) -> str:
    return str("" if value is None else value).replace("|", "\\|").replace("\n", " ")

"""Batches: up to ten entries, each done for itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from consumers.gateway.sqs.calls import SqsCall, as_sqs_error
from consumers.gateway.sqs.errors import SqsError, missing

_MOST_ENTRIES = 10
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)

Entry = Mapping[str, Any]
T = TypeVar("T")


def entries_of(call: SqsCall) -> list[dict[str, Any]]:
    """The entries of a batch, checked as a whole."""
    entries = call.given.get("Entries")
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise missing("Entries")
    if not entries:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > _MOST_ENTRIES:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are 10. You have sent {len(entries)}.",
        )
    ids = [str(each.get("Id", "")) for each in entries]
    if not all(_ID.fullmatch(each) for each in ids):
        raise SqsError(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores."
            " It can be at most 80 letters long.",
        )
    for place, each in enumerate(ids):
        if each in ids[:place]:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {each} repeated.")
    return entries


def outcomes(work: Callable[[Entry], T], entries: Iterable[Entry]) -> list[T | Exception]:
    """What ``work`` returns or raises for each entry."""
    found: list[T | Exception] = []
    for each in entries:
        try:
            found.append(work(each))
        except Exception as error:
            found.append(error)
    return found


def told(
    entries: Iterable[Entry], results: Iterable[dict[str, Any] | BaseException]
) -> dict[str, Any]:
    """The answer to a batch: of each entry how it went."""
    done: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for entry, result in zip(entries, results, strict=True):
        if isinstance(result, dict):
            done.append({"Id": entry["Id"]} | result)
            continue
        problem = as_sqs_error(result) if isinstance(result, Exception) else None
        if problem is None:
            raise result
        if problem.kind == "QueueDoesNotExist":
            raise problem  # of the whole batch
        failed.append(
            {
                "Id": entry["Id"],
                "SenderFault": problem.is_senders,
                "Code": problem.code,
                "Message": problem.message,
            }
        )
    return {"Successful": done} | ({"Failed": failed} if failed else {})

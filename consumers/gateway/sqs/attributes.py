"""The attributes of a queue: which there are, what they may be, and what is usual."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from consumers.gateway.sqs.contents import MOST_BYTES
from consumers.gateway.sqs.errors import SqsError, invalid

#: Without a redrive policy, a message is handed out so often before it dies.
MOST_DELIVERIES = 1_000
#: The longest retention of a queue, and the usual one.
LONGEST_RETENTION, USUAL_RETENTION = 1_209_600, 345_600
#: Whole numbers: lowest, highest, and the value of a queue that was told nothing.
_NUMBERS: dict[str, tuple[int, int, int]] = {
    "DelaySeconds": (0, 900, 0),
    "MaximumMessageSize": (1_024, MOST_BYTES, MOST_BYTES),
    "MessageRetentionPeriod": (60, LONGEST_RETENTION, USUAL_RETENTION),
    "ReceiveMessageWaitTimeSeconds": (0, 20, 0),
    "VisibilityTimeout": (0, 43_200, 30),
}
_COUNTED = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
)
_TOLD = ("CreatedTimestamp", "LastModifiedTimestamp", "QueueArn")
#: Of FIFO queues only: the values that there are; the first one is usual.
_FIFO: dict[str, tuple[str, str]] = {
    "ContentBasedDeduplication": ("false", "true"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
_IS_FIFO, FIFO_SUFFIX = "FifoQueue", ".fifo"
_REFUSED = ("Policy", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds")
_KEPT = ("RedrivePolicy", "RedriveAllowPolicy", "SqsManagedSseEnabled")
NAMES = frozenset((*_NUMBERS, *_COUNTED, *_TOLD, _IS_FIFO, *_FIFO, *_REFUSED, *_KEPT, "All"))


@dataclass(frozen=True, slots=True)
class RedrivePolicy:
    """Where messages go that were received too often: a queue of the same account."""

    target: str
    most: int


def checked(given: Mapping[str, Any] | None, account: str, *, is_fifo: bool) -> dict[str, str]:
    """Attributes that a caller sets, each as the text that is kept."""
    found: dict[str, str] = {}
    for name, value in (given or {}).items():
        if name in _NUMBERS:
            lowest, highest, _ = _NUMBERS[name]
            text = str(value)
            if not text.isdecimal() or not lowest <= int(text[:12]) <= highest:
                raise _bad(name)
            found[name] = str(int(text))
        elif name in _KEPT:
            found[name] = _kept(name, str(value), account, is_fifo=is_fifo)
        elif name == _IS_FIFO or name in _FIFO:
            found |= _of_fifo(name, str(value), is_fifo=is_fifo)
        elif name in _REFUSED and value:
            raise SqsError("UnsupportedOperation", f"{name} is not there: leave it out.")
        elif name not in _REFUSED:
            raise _unknown(name)
    return found


def require_fitting(attributes: Mapping[str, str]) -> None:
    """Refuse attributes of a FIFO queue that do not go together."""
    told = effective(attributes, is_fifo=True)
    if told["FifoThroughputLimit"] != "perQueue" and told["DeduplicationScope"] == "queue":
        raise SqsError(
            "InvalidAttributeValue",
            "Invalid value for the parameter FifoThroughputLimit. Reason: perMessageGroupId needs"
            " DeduplicationScope messageGroup.",
        )


def policy(attributes: Mapping[str, str], account: str) -> RedrivePolicy | None:
    """The redrive policy of a queue; None when it has none."""
    text = attributes.get("RedrivePolicy", "")
    if not text:
        return None
    try:
        given = json.loads(text)
        most, target = int(given["maxReceiveCount"]), str(given["deadLetterTargetArn"])
    except (ValueError, KeyError, TypeError):
        reason = "It has deadLetterTargetArn and maxReceiveCount, as JSON."
        raise invalid(text, "RedrivePolicy", reason) from None
    *_, owner, name = ("", *target.split(":"))
    if owner != account or not name:
        raise no_target(text)
    if not 1 <= most <= MOST_DELIVERIES:
        reason = f"maxReceiveCount has to be from 1 to {MOST_DELIVERIES}."
        raise invalid(text, "RedrivePolicy", reason)
    return RedrivePolicy(name, most)


def no_target(text: str) -> SqsError:
    """The queue for the dead ones is missing, or is somebody else's."""
    return invalid(text, "RedrivePolicy", "Dead letter target does not exist.")


def effective(attributes: Mapping[str, str], *, is_fifo: bool) -> dict[str, str]:
    """What a queue was told, and what it has without a word."""
    usual = {name: str(usual) for name, (_, _, usual) in _NUMBERS.items()}
    if is_fifo:
        usual |= {_IS_FIFO: "true"} | {name: values[0] for name, values in _FIFO.items()}
    told = {name: value for name, value in attributes.items() if value}
    return usual | {"SqsManagedSseEnabled": "false"} | told


def usual_number(name: str) -> int:
    """What a queue has without a word, where that is a whole number."""
    return int(_NUMBERS[name][2])


def wanted(names: Iterable[str]) -> set[str]:
    """The names that were asked for; InvalidAttributeName for one that there is not."""
    found = set(names)
    for each in found - NAMES:
        raise _unknown(each)
    return set(NAMES) if "All" in found else found


def _of_fifo(name: str, text: str, *, is_fifo: bool) -> dict[str, str]:
    if not is_fifo:
        if text.lower() == "false":
            return {}
        raise _unknown(name)
    if name == _IS_FIFO:
        if text.lower() != "true":
            raise _bad(name)
        return {}  # its name says so
    if text not in _FIFO[name]:
        raise _bad(name)
    return {name: text}


def _kept(name: str, text: str, account: str, *, is_fifo: bool) -> str:
    if name == "RedrivePolicy":
        found = policy({name: text}, account)  # refuses what is none
        if found and found.target.endswith(FIFO_SUFFIX) is not is_fifo:
            reason = "Dead-letter queue must be same type of queue as the source."
            raise invalid(text, name, reason)
    elif name == "SqsManagedSseEnabled" and text.lower() not in {"true", "false"}:
        raise _bad(name)
    return text


def _bad(name: str) -> SqsError:
    return SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")


def _unknown(name: str) -> SqsError:
    return SqsError("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")

"""The errors of the SQS door: each with its name in the JSON protocol and in the older one.

SDKs read the older name from a header, and programs compare it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from consumers.gateway.answers import GatewayAnswer

JSON = "application/x-amz-json-1.0"
_SQS = "com.amazonaws.sqs#"
_CORAL = "com.amazon.coral.service#"
_OLD = "AWS.SimpleQueueService."

#: By its short name: name in JSON, older name, status.
_KINDS: dict[str, tuple[str, str, int]] = {
    "AccessDenied": (f"{_CORAL}AccessDeniedException", "AccessDenied", 403),
    "BatchEntryIdsNotDistinct": (
        f"{_SQS}BatchEntryIdsNotDistinct", f"{_OLD}BatchEntryIdsNotDistinct", 400,
    ),
    "BatchRequestTooLong": (f"{_SQS}BatchRequestTooLong", f"{_OLD}BatchRequestTooLong", 400),
    "EmptyBatchRequest": (f"{_SQS}EmptyBatchRequest", f"{_OLD}EmptyBatchRequest", 400),
    "InternalFailure": (f"{_CORAL}InternalFailure", "InternalFailure", 500),
    "InvalidAction": (f"{_CORAL}UnknownOperationException", "InvalidAction", 400),
    "InvalidAttributeName": (f"{_SQS}InvalidAttributeName", "InvalidAttributeName", 400),
    "InvalidAttributeValue": (f"{_SQS}InvalidAttributeValue", "InvalidAttributeValue", 400),
    "InvalidBatchEntryId": (f"{_SQS}InvalidBatchEntryId", f"{_OLD}InvalidBatchEntryId", 400),
    "InvalidMessageContents": (f"{_SQS}InvalidMessageContents", "InvalidMessageContents", 400),
    "InvalidParameterValue": (
        f"{_CORAL}InvalidParameterValueException", "InvalidParameterValue", 400,
    ),
    "MalformedInput": (f"{_CORAL}SerializationException", "MalformedInput", 400),
    "MessageNotInflight": (f"{_SQS}MessageNotInflight", f"{_OLD}MessageNotInflight", 400),
    "MissingParameter": (f"{_CORAL}MissingRequiredParameterException", "MissingParameter", 400),
    "PurgeQueueInProgress": (f"{_SQS}PurgeQueueInProgress", f"{_OLD}PurgeQueueInProgress", 403),
    "QueueDoesNotExist": (f"{_SQS}QueueDoesNotExist", f"{_OLD}NonExistentQueue", 400),
    "QueueNameExists": (f"{_SQS}QueueNameExists", "QueueAlreadyExists", 400),
    "ReceiptHandleIsInvalid": (f"{_SQS}ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404),
    "RequestThrottled": (f"{_SQS}RequestThrottled", "RequestThrottled", 429),
    "RequestEntityTooLarge": (f"{_CORAL}RequestEntityTooLargeException", "RequestTooLarge", 413),
    "ResourceNotFound": (f"{_SQS}ResourceNotFoundException", "ResourceNotFoundException", 404),
    "ServiceUnavailable": (
        f"{_CORAL}ServiceUnavailableException", "ServiceUnavailable", 503,
    ),
    "TooManyEntriesInBatchRequest": (
        f"{_SQS}TooManyEntriesInBatchRequest", f"{_OLD}TooManyEntriesInBatchRequest", 400,
    ),
    "UnsupportedOperation": (f"{_SQS}UnsupportedOperation", f"{_OLD}UnsupportedOperation", 400),
}  # fmt: skip
_SERVER_ERROR = 500


class SqsError(Exception):
    """A call that is refused."""

    def __init__(self, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.headers = dict(headers or {})

    @property
    def code(self) -> str:
        """The older name, which is that of an entry of a batch, too."""
        return _KINDS[self.kind][1]

    @property
    def is_senders(self) -> bool:
        """Whether the caller is at fault."""
        return _KINDS[self.kind][2] < _SERVER_ERROR

    def answer(self) -> GatewayAnswer:
        """As an SDK expects it."""
        name, code, status = _KINDS[self.kind]
        told = self.headers | {
            "x-amzn-query-error": f"{code};{'Sender' if self.is_senders else 'Receiver'}"
        }
        body = msgspec.json.encode({"__type": name, "message": self.message})
        return GatewayAnswer(status, body, JSON, told)


def invalid(value: object, parameter: str, reason: str) -> SqsError:
    """A parameter that cannot be taken."""
    shown = str(value)[:100]
    return SqsError(
        "InvalidParameterValue",
        f"Value {shown} for parameter {parameter} is invalid. Reason: {reason}",
    )


def of_fifo_only(value: object, parameter: str) -> SqsError:
    """A parameter that the other kind of queue has."""
    reason = "The request include parameter that is not valid for this queue type."
    return invalid(value, parameter, reason)


def missing(parameter: str) -> SqsError:
    """A parameter that has to be there."""
    return SqsError("MissingParameter", f"The request must contain the parameter {parameter}.")

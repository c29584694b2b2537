"""The SQS door: finds out who calls which operation, and answers as SDKs expect it."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from typing import Any

import msgspec

from consumers.gateway.answers import GatewayAnswer
from consumers.gateway.bodies import Bodies, require_length
from consumers.gateway.calls import Gone, HttpCall, Receive, Send, Services
from consumers.gateway.credentials.shown import sha256_hex
from consumers.gateway.front import answer, headers_of, origin_of, shown_by
from consumers.gateway.present import TooManyRequests
from consumers.gateway.room import AnswerShare
from consumers.gateway.sqs import messages, moves, queues, sending
from consumers.gateway.sqs.calls import (
    KnownQueues,
    SqsCall,
    SqsHandler,
    as_sqs_error,
)
from consumers.gateway.sqs.errors import JSON, SqsError
from consumers.gateway.sqs.sequences import SequenceNumbers

logger = logging.getLogger("penstock.gateway")

#: By name: the level that a key needs, and who answers.
OPERATIONS: dict[str, tuple[str, SqsHandler]] = {
    "CreateQueue": ("c", queues.create),
    "DeleteQueue": ("d", queues.delete),
    "GetQueueUrl": ("g", queues.url),
    "ListQueues": ("g", queues.list_all),
    "GetQueueAttributes": ("g", queues.attributes),
    "SetQueueAttributes": ("c", queues.set_attributes),
    "PurgeQueue": ("d", queues.purge),
    "ListQueueTags": ("g", queues.tags),
    "TagQueue": ("c", queues.tag),
    "UntagQueue": ("c", queues.untag),
    "ListDeadLetterSourceQueues": ("g", queues.sources),
    "SendMessage": ("p", sending.send),
    "SendMessageBatch": ("p", sending.send_batch),
    "ReceiveMessage": ("r", messages.receive),
    "DeleteMessage": ("a", messages.delete),
    "DeleteMessageBatch": ("a", messages.delete_batch),
    "StartMessageMoveTask": ("c", moves.start),
    "ListMessageMoveTasks": ("g", moves.list_all),
    "CancelMessageMoveTask": ("c", moves.cancel),
    "ChangeMessageVisibility": ("u", messages.change),
    "ChangeMessageVisibilityBatch": ("u", messages.change_batch),
}
#: SQS has them, and the door does not.
MISSING = frozenset(
    {
        "AddPermission",
        "RemovePermission",
    }
)
TARGET = "AmazonSQS."
_FORM = "application/x-www-form-urlencoded"
_OLD_PROTOCOL = (
    b'<?xml version="1.0"?><ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/">'
    b"<Error><Type>Sender</Type><Code>UnsupportedProtocol</Code><Message>This gateway speaks the"
    b" AWS JSON protocol of SQS: use an SDK from November 2023 or later.</Message></Error>"
    b"</ErrorResponse>"
)


def is_for_sqs(scope: Any) -> bool:
    """Whether a request is for this door: SDKs post to the root or to the path of a queue."""
    if scope["method"] != "POST" or scope["path"].startswith("/api/"):
        return False
    headers = dict(scope["headers"])
    is_form = headers.get(b"content-type", b"").startswith(_FORM.encode())
    return b"x-amz-target" in headers or is_form


class SqsDoor:
    """All operations as one application."""

    def __init__(self, services: Services, bodies: Bodies) -> None:
        self._services = services
        self._bodies = bodies
        self._known = KnownQueues()
        self._numbers = SequenceNumbers(services.room)
        self._proxies = services.settings.proxies()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one call."""
        with closing(AnswerShare(self._services.room)) as share, ExitStack() as until_sent:
            try:
                made = await self._answered(scope, receive, send, share, until_sent)
                await share.hold(len(made.body))
            except Gone:
                return
            except Exception as error:
                problem = as_sqs_error(error)
                if problem is None:
                    logger.exception("a call of SQS failed")
                    told = "The gateway has failed; its log says why."
                    problem = SqsError("InternalFailure", told)
                made = problem.answer()
            await answer(send, made)

    async def _answered(
        self,
        scope: Any,
        receive: Receive,
        send: Send,
        share: AnswerShare,
        until_sent: ExitStack,
    ) -> GatewayAnswer:
        services, headers = self._services, headers_of(scope)
        if "x-amz-target" not in headers:
            return GatewayAnswer(400, _OLD_PROTOCOL, "text/xml")
        origin = origin_of(scope, headers, self._proxies)
        most = services.settings.max_body_bytes
        shown = shown_by(scope, headers)
        require_length(headers, most)
        signer = await services.access.aws_signer(shown, origin.address)
        async with self._bodies.read(receive, headers, most) as body:
            caller = services.access.aws_caller(signer, body, origin.address)
            scope["told"] = {"account": caller.account, "key": caller.principal.key_id}
            services.uses.count(caller.principal.key_id)
            share.account = caller.principal.account_id
            call = SqsCall(
                HttpCall(services, caller, shown, {}, receive, send, share),
                self._known,
                self._numbers,
                _parameters(body),
                services.settings.sqs_url or f"{origin.scheme}://{headers['host']}",
                signer.signed.region,
                headers["x-amz-target"].removeprefix(TARGET),
                sha256_hex(body),
            )
            made = await self._in_quota(call, until_sent)
        return GatewayAnswer(200, msgspec.json.encode(made), JSON)

    async def _in_quota(self, call: SqsCall, until_sent: ExitStack) -> dict[str, Any]:
        """The answer; a poll beyond the quota of its account finds nothing, and is no error."""
        present = self._services.present
        try:
            until_sent.enter_context(present.one(call.http.caller))
        except TooManyRequests:
            if call.operation != "ReceiveMessage":
                raise
            await present.hold(call.http.caller, call.http.unless_gone)
            return {}
        return await _handled(call)


async def _handled(call: SqsCall) -> dict[str, Any]:
    name = call.operation
    if name in MISSING:
        raise SqsError("UnsupportedOperation", f"{name} is not there.")
    if name not in OPERATIONS:
        raise SqsError("InvalidAction", "There is no such operation of SQS.")
    level, handler = OPERATIONS[name]
    if level not in call.http.caller.levels:
        raise SqsError("AccessDenied", f"The key lacks the level {level!r}.")
    return await handler(call)


def _parameters(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise SqsError("MalformedInput", "The body is not a JSON object.") from None

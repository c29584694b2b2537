"""How a stream goes on after its connection has ended."""

from __future__ import annotations

from collections.abc import Callable

from penstock.http.address import GatewayAddress
from penstock.http.heard import ServerSentEvent
from penstock.http.verbs import AnswerLost, Attempts, HttpReply, HttpVerb, refuse_stream

#: A comment comes every 15 seconds: silence for so long is a lost connection.
SILENCE_SECONDS = 45.0
#: After these codes a stream may begin again: the gateway, or its database, was away.
_PASSING = 429


class StreamRefused(Exception):
    """The gateway has answered a stream with an error."""

    def __init__(self, reply: HttpReply) -> None:
        super().__init__(str(reply.status))
        self.reply = reply


class Resumed:
    """A stream that begins again where it ended, as often as something comes between."""

    def __init__(
        self, make: Callable[[str], HttpVerb[None]], most: int, address: GatewayAddress
    ) -> None:
        self._make = make
        self._most = most
        self._name = address.name
        self._last = ""
        self._begin()

    def _begin(self) -> None:
        self._attempts = Attempts(self.verb(), self._most, self._name)

    def verb(self) -> HttpVerb[None]:
        """The call that begins it, or goes on."""
        return self._make(self._last)

    def took(self, each: ServerSentEvent) -> bool:
        """Note what has come.  Returns whether it is an event; raises when it is the end."""
        self._begin()  # the connection was good
        if each.id:
            self._last = each.id
        if each.kind == "end":
            status = int(each.data)
            if status < _PASSING:
                refuse_stream(status, self.verb().missing)
            raise AnswerLost("has ended the stream", was_sent=True)
        return not each.kind and bool(each.data)

    def refused(self, error: StreamRefused) -> float:
        """How long to wait after an answer that is an error; raises when it is no use."""
        wait = self._attempts.answered(error.reply)
        return wait or 0.0

    def lost(self, error: AnswerLost) -> float:
        """How long to wait before the next attempt; raises when there is none."""
        return self._attempts.lost(error)

    def ended(self) -> float:
        """How long to wait after an end without a reason: the gateway was stopped."""
        return self.lost(AnswerLost("has ended the stream", was_sent=True))

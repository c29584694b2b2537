"""Receipt handles: a receipt with a seal that says of which queue it is."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

from consumers.gateway.sqs.errors import SqsError
from penstock.errors import MalformedReceipt
from penstock.subscriptions.queue import Receipt


def handle(address: str, receipt: Receipt) -> str:
    """The handle of a receipt of this queue."""
    text = str(receipt)
    return urlsafe_b64encode(f"{text} {_seal(address, text)}".encode()).decode()


def receipt_of(address: str, given: object) -> Receipt:
    """The receipt of a handle.  ReceiptHandleIsInvalid for what was never one of this queue."""
    try:
        text = urlsafe_b64decode(str(given).encode()).decode("ascii").partition(" ")[0]
        receipt = Receipt.parse(text)
    except (ValueError, MalformedReceipt):
        raise _invalid(given) from None
    # There is one handle of a receipt, so another text of the same bytes is none.
    if handle(address, receipt) != given:
        raise _invalid(given)
    return receipt


def _seal(address: str, text: str) -> str:
    # It finds mistakes, and is no secret: only the database can check the token of a receipt.
    return hashlib.blake2b(f"{address} {text}".encode(), digest_size=6).hexdigest()


def _invalid(given: object) -> SqsError:
    return SqsError(
        "ReceiptHandleIsInvalid", f'The input receipt handle "{str(given)[:200]}" is not valid.'
    )

"""Queues on a server in the test's process that speaks the protocols of SQS and SNS."""

from __future__ import annotations

import itertools
import json
from typing import Any

import boto3

REGION = "eu-central-1"
ACCOUNT = "123456789012"
_numbers = itertools.count(1)


class Queue:
    """A queue of this test's own."""

    def __init__(self, endpoint: str, *, fifo: bool = False, **attributes: str) -> None:
        self.name = f"events-{next(_numbers)}" + (".fifo" if fifo else "")
        self.endpoint = endpoint
        self.client = boto3.client("sqs", region_name=REGION, endpoint_url=endpoint)
        given = attributes | ({"FifoQueue": "true"} if fifo else {})
        made = self.client.create_queue(QueueName=self.name, Attributes=given)
        self.url = made["QueueUrl"]

    @property
    def address(self) -> str:
        """The address as a sink is given it."""
        return f"sqs://{REGION}/{self.name}?endpoint={self.endpoint}"

    def read(self) -> list[dict[str, Any]]:
        """Everything that is in it, in the order in which it comes."""
        found: list[dict[str, Any]] = []
        while messages := self.client.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=10,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        ).get("Messages"):
            self.client.delete_message_batch(
                QueueUrl=self.url,
                Entries=[
                    {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]}
                    for number, each in enumerate(messages)
                ],
            )
            found += messages
        return found

    def sequences(self) -> list[int]:
        """The sequences of what is in it."""
        return [int(json.loads(each["Body"])["sequence"]) for each in self.read()]

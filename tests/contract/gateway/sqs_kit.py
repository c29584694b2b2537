"""boto3 against the gateway, and calls that boto3 would not make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from tests.contract.gateway.kit import Client, Reply, send

_session = boto3.session.Session()


def sqs_of(client: Client) -> Any:
    """boto3 with the key of an account; it tries once."""
    assert client.key is not None
    return _session.client(
        "sqs",
        region_name="eu-west-1",
        endpoint_url=f"http://127.0.0.1:{client.port}",
        aws_access_key_id=client.key.key_id,
        aws_secret_access_key=client.key.secret,
        config=Config(retries={"total_max_attempts": 1}),
    )


def refused(call: Callable[..., Any], **given: Any) -> tuple[str, str, int]:
    """The older name, the name in JSON, and the status of an error."""
    with pytest.raises(ClientError) as caught:
        call(**given)
    answer = caught.value.response
    told = answer["Error"]
    return (
        told["Code"],
        told.get("QueryErrorCode", ""),
        answer["ResponseMetadata"]["HTTPStatusCode"],
    )


def received(sqs: Any, url: str, count: int = 1, **more: Any) -> list[Any]:
    """So many messages, in as many calls as it takes."""
    found: list[Any] = []
    while len(found) < count:
        given = {"MaxNumberOfMessages": min(10, count - len(found)), "WaitTimeSeconds": 20} | more
        found += sqs.receive_message(QueueUrl=url, **given)["Messages"]
    return found


def raw(client: Client, target: str, body: bytes, path: str = "/", **headers: str) -> Reply:
    """A call that is signed as SDKs do it, with anything in it."""
    assert client.key is not None
    told = {"X-Amz-Target": f"AmazonSQS.{target}", "Content-Type": "application/x-amz-json-1.0"}
    request = AWSRequest(
        "POST", f"http://127.0.0.1:{client.port}{path}", data=body, headers=told | headers
    )
    credentials = Credentials(client.key.key_id, client.key.secret)
    SigV4Auth(credentials, "sqs", "eu-west-1").add_auth(request)
    return send(client.port, "POST", path, body, dict(request.headers))

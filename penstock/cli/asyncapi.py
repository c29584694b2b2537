"""``penstock asyncapi``: the topics as an AsyncAPI document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any
from urllib.parse import quote

import typer

import penstock
from penstock import database
from penstock.cli.output import show_json
from penstock.http.address import GatewayAddress

_CLOUD_EVENT = {
    "type": "object",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "format": "uuid"},
        "source": {"type": "string", "description": "the topic"},
        "type": {"type": "string"},
        "time": {"type": "string", "format": "date-time"},
        "recordedtime": {"type": "string", "format": "date-time"},
        "datacontenttype": {"type": "string"},
        "partitionkey": {"type": "string", "description": "events of one key keep their order"},
        "sequence": {"type": "string", "pattern": "^[0-9]{19}$"},
        "penstockpartition": {"type": "integer"},
        "penstockhistory": {"type": "integer"},
        "data": {},
        "data_base64": {"type": "string"},
    },
}

Title = Annotated[str, typer.Option(help="The title of the document.")]


def asyncapi(title: Title = "Events") -> None:
    """Write the account's topics as an AsyncAPI 3.0 document: where each is heard and published."""
    from penstock.http import GatewayClient

    with GatewayClient() as gateway:
        address, root = gateway.address, f"{gateway.address.account}/"
        topics = [each.removeprefix(root) for each in gateway.topics()]
    show_json(document(title, address, topics))


def of_database(
    namespace: Annotated[
        str, typer.Argument(help="The namespace of an account: its topics, at or below it.")
    ],
    gateway: Annotated[
        str, typer.Option(help="Where the gateway is, without the account.")
    ] = "https://localhost",
    title: Title = "Events",
) -> None:
    """Write an account's topics as an AsyncAPI 3.0 document: where each is heard and published."""
    from penstock.topics import names

    with database.connect() as connection:
        found = names.list_topics(connection, namespace)
    account = namespace.partition("/")[0]
    # The document names no key, and needs none.
    address = GatewayAddress.of(f"{gateway}/{account}", "none.none")
    topics = [each.address.removeprefix(f"{account}/") for each in found]
    show_json(document(title, address, topics))


def document(title: str, address: GatewayAddress, topics: Iterable[str]) -> dict[str, Any]:
    """The document: a channel for each topic, on which events are received and sent."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for topic in sorted(topics):
        name = quote(topic, safe="").replace("%", "_").replace(".", "_2E").replace("~", "_7E")
        reference = {"$ref": f"#/channels/{name}"}
        channels[name] = {
            "address": f"{address.base}/topics/{quote(topic)}",
            "title": topic,
            "messages": {"event": {"$ref": "#/components/messages/event"}},
            "servers": [{"$ref": "#/servers/gateway"}],
        }
        operations[f"receive_{name}"] = {
            "action": "receive",
            "channel": reference,
            "summary": f"Events of {topic}: GET {channels[name]['address']}/stream",
            "bindings": {"http": {"method": "GET", "bindingVersion": "0.3.0"}},
        }
        operations[f"send_{name}"] = {
            "action": "send",
            "channel": reference,
            "summary": f"Publish to {topic}: POST {channels[name]['address']}/events",
            "bindings": {"http": {"method": "POST", "bindingVersion": "0.3.0"}},
        }
    key = {"$ref": "#/components/securitySchemes/key"}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": penstock.__version__},
        "defaultContentType": "application/cloudevents+json",
        "servers": {
            "gateway": {
                "host": address.name,
                "protocol": "https" if address.is_secure else "http",
                "security": [key],
            }
        },
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": {
                "event": {
                    "name": "event",
                    "title": "A CloudEvent",
                    "contentType": "application/cloudevents+json",
                    "payload": _CLOUD_EVENT,
                }
            },
            "securitySchemes": {
                "key": {
                    "type": "httpApiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "Key KEY_ID.SECRET",
                }
            },
        },
    }

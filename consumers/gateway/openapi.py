"""The description of the API in OpenAPI 3.1, made from the table of operations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from consumers.gateway.operations import ALWAYS, Operation
from penstock import __version__

_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")


def described(operations: Iterable[Operation]) -> dict[str, Any]:
    """The whole page."""
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        path = _PARAMETER.sub(r"{\1}", each.whole_path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock gateway", "version": __version__},
        "paths": paths,
        "security": [{"key": []}, {"signature": []}, {"address": []}],
        "components": {
            "securitySchemes": {
                "key": _in("header", "Authorization", "Key KEY_ID.SECRET, over TLS"),
                "signature": _in("header", "Signature", "RFC 9421, hmac-sha256"),
                "address": _in("query", "sig", "a signed address"),
            },
        },
    }


def _in(place: str, name: str, about: str) -> dict[str, str]:
    return {"type": "apiKey", "in": place, "name": name, "description": about}


def _operation(each: Operation) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(each.whole_path)
    ]
    parameters += [
        {"name": one.name, "in": "query", "description": one.about, "schema": {"type": one.kind}}
        for one in each.queries
    ]
    made: dict[str, Any] = {
        "operationId": each.name,
        "summary": each.about,
        "description": f"Needs the level {each.levels}.",
        "parameters": parameters,
        "responses": {
            str(status): {"description": about} for status, about in sorted(_answers(each).items())
        },
    }
    if each.takes:
        made["requestBody"] = {"required": True, "content": {kind: {} for kind in each.takes}}
    return made


def _answers(each: Operation) -> dict[int, str]:
    return ALWAYS | each.answers

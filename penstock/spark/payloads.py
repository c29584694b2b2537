"""The kinds of payload that become columns."""

from __future__ import annotations

from typing import Any, Protocol

from pyspark.sql import types as t

from penstock.spark.avro_schemas import avro_schema
from penstock.spark.avro_values import AvroPayloads
from penstock.spark.json_values import Convert, JsonPayloads
from penstock.spark.options import AVRO, Decode
from penstock.spark.schemas import parse_schema


class Payloads(Protocol):
    """How payloads of a kind are read."""

    #: What a whole payload is called, and what an error says where it is none.
    whole: str
    misfit: str

    def parse(self, payload: bytes) -> Any:
        """The fields of a payload as a dict, or ``MISFIT``."""

    def converter(self, wanted: t.DataType) -> Convert:
        """The converter of a field's value to a type."""


def payloads(decode: Decode, value: t.StructType, *, resolve: bool = True) -> Payloads:
    """What reads payloads, made in the task; without ``resolve``, each as it was written."""
    if decode.kind == AVRO:
        assert decode.schema is not None
        return AvroPayloads(decode.schema, decode.writers, resolve=resolve)
    return JsonPayloads(value)


def given_schema(decode: Decode) -> t.StructType | None:
    """The columns that decodeSchema has; None where they are to be inferred."""
    if decode.schema is None:
        return None
    return (
        avro_schema(decode.schema).columns if decode.kind == AVRO else parse_schema(decode.schema)
    )

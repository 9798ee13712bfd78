"""Transactions of etcd as its JSON gateway takes and answers them. Pure.

A transaction compares, and then does all of `success` or all of `failure` at one moment. One that
only reads is linearizable, too: no request here asks for less ("serializable").
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from metaserver.store.journals.etcd_gateway import (
    GarbledError,
    Json,
    bytes_of,
    list_of,
    mapping_of,
    number_of,
)
from metaserver.store.journals.etcd_layout import KeyRange

TXN_PATH: Final = "/v3/kv/txn"
OPERATIONS_MAX: Final = 100  # of one transaction; etcd's own default bound is 128


@dataclass(frozen=True, slots=True)
class Record:
    """version: how often the key was put since it was created."""

    key: bytes
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Answer:
    """found: per operation the records that it read; those that wrote have none. revision: of
    the whole etcd, after the transaction."""

    succeeded: bool
    found: tuple[tuple[Record, ...], ...]
    revision: int

    def value(self, operation: int) -> bytes | None:
        records = self.found[operation]
        return records[0].value if records else None


@dataclass(frozen=True, slots=True)
class Transaction:
    compare: Sequence[Json] = ()
    success: Sequence[Json] = ()
    failure: Sequence[Json] = ()

    def body(self) -> Json:
        return {
            "compare": list(self.compare),
            "success": list(self.success),
            "failure": list(self.failure),
        }

    def parse(self, answer: Json) -> Answer:
        """Raises GarbledError."""
        succeeded = answer.get("succeeded", False)
        if not isinstance(succeeded, bool):
            raise GarbledError("etcd's answer does not say what it did")
        operations = self.success if succeeded else self.failure
        responses = list_of(answer.get("responses"))
        if len(responses) != len(operations):
            raise GarbledError("etcd's answer is not one to what was asked")
        found = tuple(map(_records, operations, responses))
        return Answer(succeeded, found, number_of(mapping_of(answer.get("header")).get("revision")))


def _records(operation: Json, response: object) -> tuple[Record, ...]:
    (kind,) = operation
    answered = mapping_of(response).get(kind.replace("request", "response"))
    records = list_of(mapping_of(answered).get("kvs")) if kind == "request_range" else []
    return tuple(map(_record, records))


def _record(value: object) -> Record:
    fields = mapping_of(value)
    return Record(
        bytes_of(fields.get("key")), bytes_of(fields.get("value")), number_of(fields.get("version"))
    )


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def has_value(key: bytes, value: bytes) -> Json:
    return {"key": _text(key), "target": "VALUE", "result": "EQUAL", "value": _text(value)}


def has_version(key: bytes, version: int) -> Json:
    """A key that does not exist has version 0."""
    return {"key": _text(key), "target": "VERSION", "result": "EQUAL", "version": str(version)}


def put(key: bytes, value: bytes) -> Json:
    return {"request_put": {"key": _text(key), "value": _text(value)}}


def get(key: bytes) -> Json:
    return {"request_range": {"key": _text(key)}}


def get_range(keys: KeyRange, *, limit: int = 0, keys_only: bool = False) -> Json:
    """In order of the keys; without a limit all."""
    return {
        "request_range": {
            "key": _text(keys.first),
            "range_end": _text(keys.end),
            "limit": str(limit),
            "keys_only": keys_only,
        }
    }


def delete(key: bytes) -> Json:
    return {"request_delete_range": {"key": _text(key)}}


def delete_range(keys: KeyRange) -> Json:
    return {"request_delete_range": {"key": _text(keys.first), "range_end": _text(keys.end)}}

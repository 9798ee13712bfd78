"""The rows of ops: one for each op of the metaserver, consistent with the tables of the wire."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import pytest

from fscommon.wire.messages import BODIES
from fscommon.wire.ops import OPENING, SPECS, Op
from metaserver import ops
from metaserver.leases.holders import Need
from metaserver.ops.row import Access, OpRow, always, never
from metaserver.ops.table import FILES, ROWS

FOLDER = Path(ops.__file__).parent
DATA_OPS = range(16, 64)
# These belong to the handshake, or the metaserver sends them itself.
OTHERS = {Op.HELLO, Op.AUTH, Op.RDMA, Op.RECALL}
OTHERS |= {Op.OBJECT_LIST, Op.OBJECT_COPY, Op.OBJECT_SUM, Op.OBJECT_MEND}

# The functions of a row, each with its parameters that are a request or a reply of the op.
REQUEST_OF: Final = {
    "run": "request",
    "footprint": "request",
    "changes_afterwards": "request",
    "reporters": "request",
    "grants": "request",
    "already_held": "request",
    "looks_into": "request",
    "names": "request",
    "changes": "request",
    "squash": "request",
    "rewrite": "request",
    "audited": "request",
}
REPLY_OF: Final = {"grants": "reply", "already_held": "reply"}

by_op = pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.op.name)


# ---- the table ----------------------------------------------------------------------------------


def test_every_op_of_the_metaserver_has_one_row() -> None:
    rows = [row.op for file in FILES for row in file.ROWS]
    assert len(rows) == len(set(rows))
    metadata = {op for op in SPECS if op not in DATA_OPS} - OTHERS
    assert set(ROWS) == metadata == set(BODIES) - OTHERS


def test_every_file_with_rows_is_in_the_table() -> None:
    with_rows = {path.stem for path in FOLDER.glob("*.py") if "\nROWS: " in path.read_text()}
    assert with_rows - {"table"} == {file.__name__.rpartition(".")[2] for file in FILES}


def test_a_row_is_in_the_file_of_its_op() -> None:
    for file in FILES:
        for row in file.ROWS:
            assert inspect.getmodule(row.run) is file, row.op


def test_nothing_else_knows_an_op_by_its_name() -> None:
    """Each difference between ops is a field of the op's row."""
    named = [
        f"{path.relative_to(FOLDER.parent)}: {found}"
        for path in FOLDER.parent.rglob("*.py")
        if path.parent != FOLDER
        for found in re.findall(r"\bOp\.[A-Z_]+", path.read_text())
    ]
    assert named == ["lease_gate.py: Op.RECALL"]  # it sends this op


# ---- each row -----------------------------------------------------------------------------------


@by_op
def test_a_row_says_what_the_wire_says(row: OpRow) -> None:
    assert (row.request, row.mutation) == (BODIES[row.op][0], SPECS[row.op].mutation)
    assert row.opens == (row.op in OPENING)


@by_op
def test_the_functions_of_a_row_take_the_messages_of_its_op(row: OpRow) -> None:
    request, reply = BODIES[row.op]
    for field, parameter in REQUEST_OF.items():
        _check_takes(row, field, parameter, request)
    for field, parameter in REPLY_OF.items():
        _check_takes(row, field, parameter, reply)
    assert get_type_hints(row.run)["return"] is reply


def _check_takes(row: OpRow, field: str, parameter: str, message: type) -> None:
    function = getattr(row, field)
    if function is None:
        return
    hint = get_type_hints(function)[parameter]
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    assert Any in kinds or message in kinds, f"{field} takes {hint}"
    unknown = set(_used(function, parameter)) - {one.name for one in fields(message)}
    assert not unknown, f"{field} uses {unknown}, which {message.__name__} has not"


def _used(function: Callable[..., Any], parameter: str) -> Iterator[str]:
    """The attributes of the parameter that the function uses by itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from [node.attr] if node.value.id == parameter else []


@by_op
def test_the_fields_of_a_row_agree(row: OpRow) -> None:
    if row.footprint is None:
        about_leases = (row.reporters, row.grants, row.already_held, row.looks_into)
        assert all(one is None for one in about_leases)
        assert row.changes_afterwards is None and not row.is_look and not row.grants_by_directory
    if row.grants_absence:
        assert row.looks_into is not None
    if row.names is None:
        assert row.squash is None and row.rewrite is None and row.changes is never
    if row.mutation:
        assert row.access is Access.SESSION and not row.is_look
        assert row.changes is never  # read-only keys can never use it
    else:
        assert not row.repeat_waits_for_truncate and not row.opens
    if row.reporters is not None or row.hurries_recall:
        assert "ino" in {one.name for one in fields(row.request)}
    if row.audited is not None:
        assert row.access is Access.ADMIN


def test_the_scan_of_functions_sees_what_they_use() -> None:
    def footprint(tx: object, request: Any) -> list[Need]:
        return [Need(request.ino, request.flags)] if always(request) else []

    assert list(_used(footprint, "request")) == ["ino", "flags"]

"""Columns of Arrow as PostgreSQL takes them: whole, without a Python object for each value.

A column that does not fit raises a ValueError, as Arrow's own errors are.  The caller then looks at
each event and names the one that is wrong.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any

from penstock.publishing.columns import PackedArray, packed_array

#: An array of Arrow, in one piece or in several.
Column = Any

_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_UUID_BYTES = 16


def _modules() -> tuple[Any, Any]:
    """Only who publishes a table needs Arrow.  Its own types do not fit all that it takes."""
    import pyarrow
    import pyarrow.compute

    return pyarrow, pyarrow.compute


def packed(type_name: str, column: Column) -> PackedArray:
    """A column of texts or bytes as an array: before each value its size, or -1 for NULL."""
    pa, pc = _modules()
    values = column.cast(pa.binary())
    sizes = _integers(pc.fill_null(pc.binary_length(values), -1))
    heads = _fixed(4, sizes).cast(pa.binary())
    joined = pc.binary_join_element_wise(heads, pc.fill_null(values, b""), b"")
    size = pc.sum(pc.binary_length(joined)).as_py() or 0
    return packed_array(type_name, len(values), [memoryview(joined.buffers()[2])[:size]])


def packed_integers(column: Column, below: int) -> PackedArray:
    """A column of integers from 0 to ``below``, as an array of int4."""
    pa, pc = _modules()
    least, most = pc.min_max(column).as_py().values()  # there is a value
    if not 0 <= least <= most < below:
        raise ValueError("an integer is out of range")
    values = _fixed(4, _integers(pc.fill_null(column.cast(pa.int32()), 0))).cast(pa.binary())
    return packed("int4", pc.if_else(pc.is_valid(column), values, pa.scalar(None, pa.binary())))


def packed_ids(column: Column) -> PackedArray:
    """A column of UUIDs, each of them there, as texts or as 16 bytes."""
    pa, pc = _modules()
    if column.null_count:
        raise ValueError("some events have no id")
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_fixed_size_binary(column.type):
        return packed("uuid", column)
    texts = column.cast(pa.string())
    if not pc.all(pc.match_substring_regex(texts, _UUID)).as_py():
        raise ValueError("an id is not written as usual")
    digits = pc.binary_join(_listed(pc.replace_substring(texts, "-", "")), "")[0].as_py()
    return packed("uuid", _fixed(_UUID_BYTES, bytes.fromhex(digits)))


def require_size(column: Column, most_bytes: int) -> None:
    """Refuse a column in which a value has more bytes."""
    _, pc = _modules()
    if pc.max(pc.binary_length(column)).as_py() > most_bytes:
        raise ValueError("a value is too long")


def size(column: Column) -> int:
    """How many bytes all values have."""
    _, pc = _modules()
    return pc.sum(pc.binary_length(column)).as_py() or 0


def whole(column: Column) -> Column:
    """A column in one piece; texts without a dictionary."""
    pa, _ = _modules()
    found = column.combine_chunks()
    if pa.types.is_dictionary(found.type):
        return found.cast(pa.string())
    return found


def without_views(table: Any) -> Any:
    """The table with views, in which Polars gives texts and bytes, as Arrow's older types."""
    pa, _ = _modules()
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if pa.types.is_dictionary(field.type) and pa.types.is_string_view(field.type.value_type):
            texts = [each.dictionary.cast(pa.large_string()) for each in column.chunks]
            taken = [
                text.take(each.indices) for text, each in zip(texts, column.chunks, strict=True)
            ]
            column = pa.chunked_array(taken, pa.large_string())
        elif pa.types.is_string_view(field.type):
            column = column.cast(pa.large_string())
        elif pa.types.is_binary_view(field.type):
            column = column.cast(pa.large_binary())
        else:
            continue
        table = table.set_column(place, field.name, column)
    return table


def dictionaries(table: Any) -> list[dict[str, Any]]:
    """The rows; times to the microsecond.  ValueError or OverflowError for one beyond 9999."""
    pa, pc = _modules()
    if "not_before" in table.column_names:
        place = table.column_names.index("not_before")
        times = pc.cast(
            table["not_before"],
            options=pc.CastOptions(pa.timestamp("us", "UTC"), allow_time_truncate=True),
        )
        table = table.set_column(place, "not_before", times)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def shared(column: Column) -> str | None:
    """The text that all values are; None where they differ, or one is NULL."""
    _, pc = _modules()
    if column.null_count or not pc.all(pc.equal(column, column[0])).as_py():
        return None
    text: str = column[0].as_py()
    return text


def _listed(column: Column) -> Column:
    """All values as one list."""
    pa, _ = _modules()
    return pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column)


def _integers(column: Column) -> array[int]:
    """Integers of four bytes, the highest byte first; the column has no NULLs."""
    first = column.offset * 4
    found = array("i", memoryview(column.buffers()[1])[first : first + len(column) * 4].tobytes())
    if sys.byteorder == "little":
        found.byteswap()
    return found


def _fixed(size: int, values: bytes | array[int]) -> Column:
    """Values of so many bytes each, out of one piece of memory."""
    pa, _ = _modules()
    view = memoryview(values).cast("B")
    buffers = [None, pa.py_buffer(view)]
    return pa.Array.from_buffers(pa.binary(size), view.nbytes // size, buffers)

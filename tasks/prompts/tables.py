"""Hugging Face data sets on disk, read batch by batch with pyarrow: Parquet and `save_to_disk` folders.

`datasets` itself is not used: a machine that only plans and directs a run does not have it, and its cache
writes a second copy of what it loads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 512
_MAGIC = b"PAR1"
_STATE = "state.json"
COLUMNS = (
    "id", "request_id", "custom_id", "domain", "messages", "prompt", "text", "tools", "target", "model",
    "request", "response", "request_body", "response_body", "body", "model_parameters", "status",
    "status_code", "response_status",
)  # fmt: skip
"""What a row may hold; other columns, such as images, are not read."""


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet, by its first bytes."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == _MAGIC
    except OSError:
        return False


def is_data_set(path: Path) -> bool:
    """Whether a folder is one split that `Dataset.save_to_disk` wrote."""
    return (path / _STATE).is_file()


def table_rows(path: Path, field: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number from 1 and values of each row; fields without a value are left out.

    Raises:
        UsageError: The table cannot be read, or has no row.
    """
    from pyarrow import ArrowException

    number = 0
    try:
        for batch in _data_set_batches(path) if path.is_dir() else _parquet_batches(path):
            names = [name for name in batch.schema.names if name in COLUMNS]
            for row in batch.select(names).to_pylist():
                number += 1
                yield number, _without_none(row)
    except (ArrowException, OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"the data set '{path}' cannot be read after row {number}: {error}",
            where=field,
            hint="write it again with `Dataset.save_to_disk` or as Parquet",
        ) from None
    if not number:
        raise UsageError(f"the data set '{path}' has no rows", where=field, hint="give one that has")


def _parquet_batches(path: Path) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        names = [name for name in file.schema_arrow.names if name in COLUMNS]
        yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=names)


def _data_set_batches(path: Path) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    state = json.loads((path / _STATE).read_text("utf-8"))
    if state.get("_indices_data_files"):
        raise ValueError("it holds a selection of rows that was not flattened")
    for one in state["_data_files"]:
        with (
            pa.memory_map(str(path / one["filename"])) as source,
            pa.ipc.open_stream(source) as reader,
        ):
            for batch in reader:
                yield from _slices(batch)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, _BATCH_ROWS):
        yield batch.slice(start, _BATCH_ROWS)


def _without_none(value: Any) -> Any:
    """Tables give every row every field; one that has no value was not there."""
    if isinstance(value, dict):
        return {name: _without_none(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_none(one) for one in value]
    return value

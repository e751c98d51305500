"""Arrow and parquet files in slices; pyarrow is imported where it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from niels_gpt.errors import InputError
from niels_gpt.extras import check_library


def packed(batch: Any) -> bytes:
    """A record batch as bytes: only its own rows, however large the file it is a part of."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpacked(data: bytes) -> Any:
    """The record batch of `packed`."""
    import pyarrow as pa

    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def parquet_file(file: Path) -> Any:
    """An opened parquet file.

    Raises:
        InputError: it is broken. MissingExtra: pyarrow is not installed.
    """
    check_library("pyarrow")
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{file}: not a whole parquet file ({' '.join(str(error).split())[:200]})") from error


def parquet_batches(file: Path, rows: int) -> Iterator[Any]:
    """The batches of a parquet file, of at most so many rows.

    Raises:
        InputError: it is broken.
    """
    import pyarrow as pa

    try:
        with parquet_file(file) as opened:
            yield from opened.iter_batches(rows)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file}: cannot be read to its end ({' '.join(str(error).split())[:200]})") from error


def arrow_batches(file: Path, rows: int) -> Iterator[Any]:
    """The batches of an Arrow file as `datasets` writes it (a stream), in slices of rows."""
    check_library("pyarrow")
    import pyarrow as pa

    try:
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
            for batch in reader:
                for at in range(0, batch.num_rows, rows):
                    yield batch.slice(at, rows)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file}: not a whole Arrow file ({' '.join(str(error).split())[:200]})") from error

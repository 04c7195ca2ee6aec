"""A topic's committed records as a table, for asyncio: `tidelog.Table` in a thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Unpack

import pyarrow as pa

from tidelog.sdk import table as blocking
from tidelog.sdk.table import Selection

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars


class Table:
    """`Table("s3://bucket/prefix", "flights")`; selections and errors are those of `tidelog`."""

    def __init__(self, store_url: str, topic: str) -> None:
        self._table = blocking.Table(store_url, topic)

    async def to_arrow(self, **selection: Unpack[Selection]) -> pa.Table:
        """The rows, by partition and offset."""
        return await asyncio.to_thread(self._table.to_arrow, **selection)

    async def to_pandas(self, **selection: Unpack[Selection]) -> pandas.DataFrame:
        """The rows as a DataFrame of pandas."""
        return await asyncio.to_thread(self._table.to_pandas, **selection)

    async def to_polars(self, **selection: Unpack[Selection]) -> polars.DataFrame:
        """The rows as a DataFrame of Polars."""
        return await asyncio.to_thread(self._table.to_polars, **selection)

    async def to_duckdb(
        self,
        connection: duckdb.DuckDBPyConnection | None = None,
        **selection: Unpack[Selection],
    ) -> duckdb.DuckDBPyRelation:
        """The rows as a relation of DuckDB's default connection, or another one."""
        return await asyncio.to_thread(self._table.to_duckdb, connection, **selection)

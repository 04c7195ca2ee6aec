"""Spark's filters as comparisons that say what need not be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tidelog.spark_source.pruning import Comparison

_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    In: "in",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
}


def comparisons(filters: Iterable[Filter]) -> Iterator[Comparison]:
    """Those of the filters that compare a column with a value."""
    for each in filters:
        operator = _OPERATORS.get(type(each))
        if operator is not None:
            (*outer, name), value = each.attribute, each.value  # type: ignore[attr-defined]
            if not outer and value is not None:
                yield Comparison(name, operator, value)

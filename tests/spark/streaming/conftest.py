"""Fixtures of the stream tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.stream import Place

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)

"""Another name of `narrowcast.spark`, with the public names that have moved to the lab."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from narrowcast import spark
from narrowcast.spark import *  # noqa: F403
from narrowcast.spark import __all__ as __all__

_IN_LAB = {"run_sweep": "narrowcast.lab.spark.sweep", "similarities": "narrowcast.lab.spark.similarity"}


def __getattr__(name: str) -> Any:
    if name in _IN_LAB:
        return getattr(import_module(_IN_LAB[name]), name)
    return getattr(spark, name)

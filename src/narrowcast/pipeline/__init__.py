"""The data pipeline on Spark: the only part of Narrowcast that imports pyspark, and only when it is used."""

from __future__ import annotations

from narrowcast.pipeline.java import JavaHome, java_home
from narrowcast.pipeline.session import session, use

__all__ = ["JavaHome", "java_home", "session", "use"]

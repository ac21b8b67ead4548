"""A plan in the form that a network or a broker takes."""

from __future__ import annotations

from narrowcast.report.export.multicast import multicast_files
from narrowcast.report.export.nats import nats_files
from narrowcast.report.export.plan_tables import Files, PlanFolder, csv_files, csv_text, write_files

__all__ = ["Files", "PlanFolder", "csv_files", "csv_text", "multicast_files", "nats_files", "write_files"]

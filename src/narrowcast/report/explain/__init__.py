"""Why a plan treats an event, a subscriber or a channel as it does."""

from __future__ import annotations

from narrowcast.report.explain.channel import explain_channel
from narrowcast.report.explain.event import explain_event
from narrowcast.report.explain.plan_context import PlanContext
from narrowcast.report.explain.subscriber import explain_subscriber

__all__ = ["PlanContext", "explain_channel", "explain_event", "explain_subscriber"]

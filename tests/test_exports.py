"""The public names are what they say, and importing them stays light."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import narrowcast
from narrowcast import errors


def test_all_names_are_importable_and_sorted() -> None:
    for name in narrowcast.__all__:
        value = getattr(narrowcast, name)
        assert name.isupper() or value.__name__ == name
    assert set(narrowcast.__all__) <= set(dir(narrowcast))
    registries = [name for name in narrowcast.__all__ if name.isupper()]
    classes = [name for name in narrowcast.__all__ if name[0].isupper() and not name.isupper()]
    functions = [name for name in narrowcast.__all__ if name.islower()]
    assert narrowcast.__all__ == sorted(registries) + sorted(classes) + sorted(functions)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("narrowcast", "Auto", "AutoMatcher"),
        ("narrowcast", "Limits", "FilterLimits"),
        ("narrowcast", "Subscription", "ParsedFilter"),
        ("narrowcast.broker", "Desk", "ControlPlane"),
        ("narrowcast.broker", "Interests", "SubscriptionIndex"),
        ("narrowcast.broker", "Record", "ActivityLog"),
        ("narrowcast.broker", "Store", "SubscriptionStore"),
        ("narrowcast.matching", "Auto", "AutoMatcher"),
        ("narrowcast.matching.partition", "Work", "PartWork"),
        ("narrowcast.pipeline", "State", "InterestState"),
        ("narrowcast.planning", "Auto", "AutoPlanner"),
        ("narrowcast.routing", "Method", "RouteMethod"),
        ("narrowcast.spark", "Batch", "MicroBatch"),
        ("narrowcast.spark", "Followed", "FollowProgress"),
    ],
)
def test_old_names_still_work_with_a_warning(module: str, old: str, new: str) -> None:
    found = import_module(module)
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(found, old) is getattr(found, new)


def test_every_public_name_is_documented() -> None:
    for name in narrowcast.__all__:
        value = getattr(narrowcast, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name


def test_import_stays_light() -> None:
    heavy = {"numba", "numpy", "pyspark", "nats", "pandas", "scipy.optimize", "vl_convert"}
    code = f"import sys, narrowcast; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_pipeline_and_broker_load_on_use() -> None:
    assert narrowcast.spark.session
    assert narrowcast.broker
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = narrowcast.nothing


def test_the_error_tree_is_drawn_whole() -> None:
    drawn = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, Exception):
            assert name in drawn
            assert issubclass(value, errors.NarrowcastError)


def test_old_names_of_parameters_and_members_still_work_with_a_warning(tmp_path: Path) -> None:
    plan = narrowcast.ChannelPlan(carries=[[1]], listens=[[1]])
    with pytest.warns(DeprecationWarning, match="'extra_files'"):
        narrowcast.write_plan(plan, tmp_path / "plan", method="hash", beside={})  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="channels_reaching"):
        assert plan.heard([0], [0])  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match="maintenance_of"):
        assert narrowcast.Overall().maintained(3) == narrowcast.Overall().maintenance_of(3)  # type: ignore[attr-defined]

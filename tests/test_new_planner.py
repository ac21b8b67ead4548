"""A new planner takes a file of its own and a line that registers it, and is then found everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from narrowcast.model.artefact import read_plan

PLANNER = '''
"""A planner of a user's own."""

import numpy as np

from narrowcast.planning.base import BasePlanner, plan_of_flows
from narrowcast.validation import check_channels, check_seed


class Toy(BasePlanner):
    """Puts wanted flows into channels in turn, beginning with one of them."""

    def __init__(self, *, channels=None, seed=0, first=0):
        self.channels = channels
        self.seed = seed
        self.first = first

    def fit(self, interest):
        check_channels(self.channels, required="toy")
        check_seed(self.seed)
        channel = (self.first + np.arange(interest.n_flows)) % self.channels
        self.plan_ = plan_of_flows(interest, channel, self.channels)
        return self
'''

COMMANDS = """
import json, sys
from support.command import document, refusal
from narrowcast.planning import planners

out = sys.argv[1]
given = ("--interests", f"{out}/interests.csv", "--channels", "2")
plan = ("plan", *given, "--method", "toy")
planned, _ = document(*plan, "--set", "first=1", "--out", f"{out}/plan")
compared, _ = document("compare", *given, "--methods", "toy,hash", "--out", f"{out}/compared")
large = refusal(*plan, "--limit", "2", "--out", f"{out}/large")
print(json.dumps([planners(boxes=False), planned, compared["rows"], large]))
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A package with a planner, installed in a folder of its own."""
    (tmp_path / "own_planner.py").write_text(PLANNER)
    about = tmp_path / "own_planner-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-planner\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[narrowcast.planners]\ntoy = own_planner:Toy\n")
    here = [str(tmp_path), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(here)}


@pytest.mark.spark
def test_commands_and_spark_find_it(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "interests.csv").write_text("subscriber,flow\na,x\na,y\nb,y\nb,z\nc,z\n")
    words = [sys.executable, "-c", COMMANDS, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    methods, planned, compared, large = json.loads(done.stdout.splitlines()[-1])
    assert "toy" in methods
    assert planned["method"] == "toy"
    plan, info = read_plan(tmp_path / "plan")
    assert plan.carries.toarray().argmax(axis=1).tolist() == [1, 0, 1]
    assert (info.method, info.params["first"]) == ("toy", 1)
    [row] = [row for row in compared if row["method"] == "toy"]
    assert (row["problem"], row["asked"], row["costs"]["waste"]["total"]) == (None, 2, 3.0)
    assert "limit is 2" in large


def test_it_is_in_the_conformance_suite(environment: dict[str, str]) -> None:
    suite = Path(__file__).parent / "planning" / "test_conformance.py"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite), "-k", "toy"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout

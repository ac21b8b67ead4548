"""Imports among modules; which layer may import which is in .importlinter."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

SOURCE = Path(__file__).parents[1] / "src" / "narrowcast"


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Imports inside functions count; imports for type checkers alone, which no program runs, do not."""
    graph = grimp.build_graph("narrowcast", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert imports["narrowcast.spark.planning.plan"] >= {"narrowcast.spark.stages.evaluate"}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_no_two_public_classes_share_a_name() -> None:
    found = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}

"""Imports among modules; which layer may import which is in .importlinter."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Imports inside functions count; imports for type checkers alone, which no program runs, do not."""
    graph = grimp.build_graph("narrowcast", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert imports["narrowcast.spark.planning.plan"] >= {"narrowcast.spark.stages.evaluate"}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None

"""Real processes are killed, cut off and sent garbage for a short time; `make test-faults` runs longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.disks import NoDiskError
from faults.scenarios import SCENARIOS

pytestmark = pytest.mark.nats

QUICK = "mixed kills"
#: What a kill of each kind, which is in the one above, would only do again.
LEFT_OUT = {
    name for name in SCENARIOS if name.split(",")[0] in ("node killed", "server killed", "client killed")
}
LEFT_OUT -= {"node killed, 100,000 subscriptions"}


@pytest.mark.parametrize(
    "name",
    [
        QUICK,
        *(pytest.param(name, marks=pytest.mark.slow) for name in SCENARIOS if name not in (QUICK, *LEFT_OUT)),
    ],
)
def test_nothing_acknowledged_is_lost(name: str, tmp_path: Path) -> None:
    try:
        row = SCENARIOS[name](tmp_path, True)
    except NoDiskError as error:
        pytest.skip(str(error))
    assert row.wrong == []
    if "events" in row.facts:
        assert row.facts["deliveries"] > 100

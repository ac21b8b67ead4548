"""Figure 4: a picture of the interest matrix, and of the message rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.tock2005.setting import PAPER, SMALL, caption_of, size_note, workload
from narrowcast.model.relation import rows_of

if TYPE_CHECKING:
    from narrowcast.lab.papers.base import Study

#: Largest number of columns and rows of the picture of interest, and of points of the rates.
COLUMNS, ROWS, POINTS = 250, 100, 500


def _figure_4(study: Study) -> Outcome:
    """Draw the workload of the first seed."""
    flows = workload(seed=study.seeds[0], **study.params)
    interest, sizes = flows.interest(), flows.sizes()
    wide, high = (max(1, -(-n // most)) for n, most in zip(interest.wants.shape[::-1], (COLUMNS, ROWS)))  # noqa: B905
    column, row = interest.wants.indices // wide, rows_of(interest.wants) // high
    (ys, xs), counts = np.unique(np.stack([row, column]), axis=1, return_counts=True)
    records: list[dict[str, Any]] = [
        {"panel": "interest", "flow": x * wide, "flow2": (x + 1) * wide, "user": y * high,
         "user2": (y + 1) * high, "wanted": 100 * n / (wide * high)}
        for x, y, n in zip(xs.tolist(), ys.tolist(), counts.tolist(), strict=True)
    ]  # fmt: skip
    first = np.cumsum(sizes) - sizes
    # The hottest flow of each market is always included: otherwise peaks would depend on the sampled points.
    some = np.union1d(np.arange(0, interest.n_flows, max(1, interest.n_flows // POINTS)), first[sizes > 0])
    records += [{"panel": "rate", "flow": int(k), "rate": float(interest.rate[k])} for k in some]
    records += [
        {"panel": "market", "flow": int(at), "name": f"market {i}" if i < 3 or i == len(sizes) else ""}
        for i, (at, size) in enumerate(zip(first.tolist(), sizes.tolist(), strict=True), 1)
        if size
    ]
    numbers = {
        "wishes": interest.n_wants,
        "wanted_flows": int(np.count_nonzero(interest.audience())),
        "hottest_messages_per_second": float(interest.rate.max(initial=0)),
    }
    rows = [ResultRow.of("workload", None, name, [count]) for name, count in numbers.items()]
    caption = f"{caption_of(study.params)}, seed {study.seeds[0]}; rates by the law {study.params['rates']}"
    note = (
        "As in the paper: wishes crowd at the hottest symbols of each market, and each user has two markets. "
        "The paper's axis reaches 1000 messages a second; its text does not say what later markets send."
    )
    return Outcome(rows, {"tock2005-figure-4": (records, caption)}, [note, *size_note(study.params)])


FIGURE_4 = Experiment("the interest matrix and the message rates, as a picture", _figure_4, PAPER, SMALL)

"""What the charts of papers are filled with in tests."""

from __future__ import annotations

from typing import Any

#: By the chart's name, a few records: of riabov2003, all but the one that its test takes apart.
RIABOV2003: dict[str, list[dict[str, Any]]] = {
    "riabov2003-figure-3": [
        {"what": "link", "x": 0.0, "y": 0.0, "x2": 1.0, "y2": 1.0},
        {"what": "transit", "x": 0.0, "y": 0.0, "block": "block 1"},
        {"what": "stub", "x": 1.0, "y": 1.0, "block": "block 1"},
    ],
    "riabov2003-figure-4": [
        {"panel": "price", "stock": "all", "kind": "data", "x": 99.0, "x2": 101.0, "y": 60.0},
        {"panel": "price", "stock": "all", "kind": "normal", "x": 100.0, "y": 50.0},
        *(
            {"panel": "popularity", "kind": kind, "x": x, "y": 90 / x}
            for kind in ("data", "Zipf")
            for x in (1, 2)
        ),
        *(
            {"panel": "amount", "stock": "all", "kind": kind, "x": x, "y": 100 / x}
            for kind in ("data", "Pareto", "lognormal")
            for x in (1.0, 20.0)
        ),
    ],
    "riabov2003-figure-5": [
        mark
        for stock in ("IBM", "SAP")
        for mark in (
            {"panel": "price", "stock": stock, "kind": "data", "x": 99.0, "x2": 101.0, "y": 60.0},
            {"panel": "price", "stock": stock, "kind": "normal", "x": 100.0, "y": 50.0},
            {"panel": "amount", "stock": stock, "kind": "data", "x": 1.0, "y": 100.0},
            {"panel": "amount", "stock": stock, "kind": "Pareto", "x": 20.0, "y": 5.0},
        )
    ],
    "riabov2003-matching": [
        {"panel": panel, "matcher": matcher, "subscriptions": k, "value": value}
        for panel, value in (("visited", 70.0), ("tested", 68.0), ("speed", 9000.0))
        for matcher in ("S-tree, tuned", "S-tree, as published")
        for k in (1000.0, 10000.0)
    ],
    "riabov2003-drift": [
        {"method": method, "modes": 9, "groups": 11, "plan": plan, "drift": drift, "improvement": 60 - drift}
        for method in ("pairwise", "partial")
        for plan in ("static", "replanned", "scratch")
        for drift in (0.0, 0.25, 0.5)
    ],
}

#: The same for tock2005.
TOCK2005: dict[str, list[dict[str, Any]]] = {
    "tock2005-figure-4": [
        {"panel": "interest", "flow": 0, "flow2": 5, "user": 0, "user2": 2, "wanted": 40.0},
        {"panel": "interest", "flow": 5, "flow2": 10, "user": 2, "user2": 4, "wanted": 10.0},
        *({"panel": "rate", "flow": k, "rate": 1000 / (1 + k)} for k in range(10)),
        {"panel": "market", "flow": 0, "name": "market 1"},
    ],
    "tock2005-figure-5": [
        *(
            {"kind": "measured", "cost": cost, "h": h, "value": 1 / h, "low": 0.9 / h, "high": 1.1 / h}
            for cost in ("alpha", "beta")
            for h in (1.0, 8.0, 40.0)
        ),
        *({"kind": "fit", "cost": "alpha", "h": h, "value": 1 / h} for h in (1.0, 8.0, 40.0)),
        {"kind": "paper", "cost": "paper", "h": 8, "value": 1.0},
    ],
    "tock2005-figure-6": [
        {
            "panel": panel,
            "prices": prices,
            "groups": groups,
            "sessions": n,
            "share": 2 / n,
            "said": "paper: a\nb",
        }
        for panel, prices in enumerate(("alpha 1, beta 1", "alpha 1.6, beta 0.4"))
        for groups in ("10", "sessions")
        for n in (10, 20, 50)
    ],
    "tock2005-figure-7": [
        *(
            {
                "kind": "method",
                "method": method,
                "groups": 50,
                "sessions": n,
                "share": 0.2,
                "low": 0.1,
                "high": 0.3,
            }
            for method in ("SF", "joint, our own")
            for n in (50, 100)
        ),
        {"kind": "axis", "groups": 50, "low": 0.14, "high": 0.32},
    ],
    "tock2005-baselines": [
        {
            "way": way,
            "order": order,
            "measure": measure,
            "value": 2.0,
            "text": "2",
            "paper": paper,
            "kind": kind,
        }
        for order, (way, kind) in enumerate((("unicast", "unplanned"), ("GF", "planned"), ("both", "hybrid")))
        for measure, paper in (("cx_over_cf", None), ("goodput_pct", 2.0), ("copies_per_message", None))
    ],
}

#: The same for tamara2007: cost over time, and changes in the end.
TAMARA2007: dict[str, list[dict[str, Any]]] = {
    **{
        f"tamara2007-figure-{n}": [
            {"panel": panel, "place": place, "method": method, "at": at, "cost": 100.0 * at + 7}
            for place, panel in enumerate(("average events", "frequent events"))
            for method in ("Scribe: a channel each", "Tamara", "Tamara+, with adapting", "cover")
            for at in (10.0, 20.0, 61.0)
        ]
        for n in range(5, 10)
    },
    **{
        f"tamara2007-table-{n}": [
            {"model": model, "method": "Tamara", "cost": cost, "value": -60.0, "low": -62.0, "high": -58.0,
             "kind": kind}
            for model in ("average", "frequent")
            for cost in ("OC", "MC", "DC")
            for kind in ("here", "paper")
        ]
        for n in (2, 3)
    },
}  # fmt: skip

#: The same for tariq2012: quality, coordinates, time and load, and cost over time and with churn.
TARIQ2012: dict[str, list[dict[str, Any]]] = {
    "tariq2012-figure-3k": [
        {"method": method, "policy": policy, "variant": variant, "at": at, "cost": 1.5 + at / 100}
        for method, policy in (("OV-RTree", "kept"), ("direct, our own", "kept"), ("ncut", "followed"))
        for variant in ("flooding", "forwarding")
        for at in (50.0, 100.0, 150.0)
    ],
    "tariq2012-figure-3l": [
        {"method": method, "policy": policy, "variant": variant, "churn": churn, "cost": 2.0 + churn / 10,
         "low": 1.9 + churn / 10, "high": 2.1 + churn / 10}
        for method, policy in (("OV-RTree", "kept"), ("direct, our own", "followed"))
        for variant in ("flooding", "forwarding")
        for churn in (0.0, 8.0, 16.0)
    ],
    "tariq2012-figure-1": [
        {"method": method, "workload": workload, "metric": metric, "x": x, "value": 0.5, "low": 0.4,
         "high": 0.6}
        for method in ("rassoc/plain", "ncut/row", "direct")
        for metric, workloads in (
            ("accuracy", ("m1", "m2")),
            ("entropy", ("m1", "m2")),
            ("false_positives_per_event", ("zipf", "uniform")),
        )
        for workload in workloads
        for x in (5, 20)
    ],
    "tariq2012-figure-3": [
        *(
            {"kind": "coordinates", "metric": "hscore", "method": method, "way": way, "workload": workload,
             "axis": axis, "x": x, "value": 0.7 + x / 10}
            for method in ("rassoc", "ncut")
            for way in ("faithful", "table")
            for workload in ("m1", "zipf")
            for axis in ("groups", "landmarks", "landmarks/3", "levels")
            for x in (1, 2)
        ),
        *(
            {"kind": "clusters", "metric": metric, "method": method, "scaling": scaling, "workload": workload,
             "clustering": clustering, "axis": axis, "x": x, "value": 0.5}
            for metric, workload in (("false_positives_per_event", "zipf"), ("entropy", "m1"))
            for method in ("rassoc", "ncut")
            for scaling in ("plain", "row")
            for clustering in ("sampled", "hp2pc", "direct")
            for axis in ("landmarks", "levels")
            for x in (2, 3)
        ),
    ],
    "tariq2012-figure-4": [
        *(
            {"panel": "levels", "method": method, "way": way, "x": x, "value": 0.5 * x}
            for method in ("rassoc", "ncut")
            for way in ("25 % landmarks", "one level, ours")
            for x in (1, 2)
        ),
        *(
            {"panel": panel, "method": method, "who": who, "x": x, "value": 0.5 * x}
            for panel in ("seconds", "load of seconds", "load of bytes", "entropy", "accuracy",
                          "fewer_than_centroid_pct")
            for method in ("rassoc/row", "ncut/row", "direct")
            for who in ("root", "coordinator")
            for x in (4000, 8000)
        ),
    ],
}  # fmt: skip

#: The same for cobas2009: skews, and systems along an axis.
COBAS2009: dict[str, list[dict[str, Any]]] = {
    "cobas2009-figure-5": [
        {
            "panel": panel,
            "place": place,
            "density": density,
            "popularity": popularity,
            "value": 30.0 - density,
        }
        for place, panel in enumerate(("together, shuffle", "apart, shuffle"))
        for density in (0.0, 1.0)
        for popularity in (0.0, 1.5)
    ],
    **{
        f"cobas2009-figure-6{letter}": [
            {"panel": panel, "place": place, "system": system, "way": way, "x": x, "value": 3.0 * x}
            for place, panel in enumerate(("GB a minute", "machines that hold a filter"))
            for system in ("multi-1D", "COBAS")
            for way in ("plain", "cached")
            for x in (1.0, 1000.0)
        ]
        for letter in "abcd"
    },
    "cobas2009-figure-7a": [
        {
            "panel": panel,
            "place": place,
            "state": state,
            "order": order,
            "at": at,
            "load": 9 / at,
            "limit": 10.0,
        }
        for place, panel in enumerate(("segments held", "events that come"))
        for order, state in enumerate(("as wide ranges", "balanced", "balanced, with copies"))
        for at in (0.1, 1.0, 100.0)
    ],
    "cobas2009-figure-7b": [
        {"series": series, "order": order, "share": share, "value": share / 3, "kind": kind}
        for order, (series, kind) in enumerate(
            (("filters added", "filters"), ("machines that come", "nodes"))
        )
        for share in (1.0, 10.0)
    ],
    "cobas2009-partitioning": [
        {"panel": panel, "place": place, "scheme": scheme, "order": order, "value": 1.5 + order}
        for place, panel in enumerate(("parts that an event visits", "parts that hold a filter"))
        for order, scheme in enumerate(("k-d", "selective x 4", "COBAS, kappa 2"))
    ],
    "cobas2009-planetlab": [
        {
            "panel": panel,
            "place": place,
            "hour": hour,
            "system": system,
            "value": 9.0 - hour,
            "printed": 5.0 if hour == 4 and place == 0 else None,
            "low": 1.0 if place else None,
            "high": 9.0 if place else None,
        }
        for place, panel in enumerate(("events, MB a minute", "seconds to a subscriber"))
        for system in ("multi-1D", "DR-tree", "COBAS")
        for hour in (0.0, 4.0)
    ],
}

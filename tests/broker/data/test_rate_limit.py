"""So many events a second of each publisher pass: in batches as one by one, with few names in memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.broker.data.rate_limit import PublishRateLimit
from narrowcast.errors import ParameterError

asked = st.lists(st.tuples(st.sampled_from("pqr"), st.integers(0, 12), st.floats(0, 3)), max_size=25)


def one_by_one(
    rate: float, burst: float, arrivals: list[tuple[str, int, float]]
) -> list[tuple[str, int, int]]:
    """Return how many pass, by a bucket for each publisher from which every event takes a token."""
    buckets: dict[str, tuple[float, float]] = {}
    now, found = 0.0, []
    for publisher, n, pause in arrivals:
        now += pause
        tokens, since = buckets.get(publisher, (burst, now))
        tokens = min(burst, tokens + (now - since) * rate)
        passed = 0
        for _ in range(n):
            if tokens >= 1:
                tokens -= 1
                passed += 1
        buckets[publisher] = tokens, now
        found.append((publisher, n, passed))
    return found


@given(asked, st.sampled_from([0.25, 1.0, 3.0, 10.0, 1000.0]), st.one_of(st.none(), st.integers(1, 20)))
def test_a_batch_is_its_events_one_by_one(
    arrivals: list[tuple[str, int, float]], rate: float, burst: int | None
) -> None:
    pace, now, found = PublishRateLimit(rate, burst), 0.0, []
    for publisher, n, pause in arrivals:
        now += pause
        found.append((publisher, n, pace.admit(publisher, n, now)))
    expected = one_by_one(rate, max(1.0, rate if burst is None else burst), arrivals)
    assert found == expected
    assert pace.refused == sum(n - passed for _, n, passed in expected)


def test_the_rate_is_kept_over_time() -> None:
    pace = PublishRateLimit(100, burst=10)
    passed = sum(pace.admit("p", 5, step / 50) for step in range(501))  # 250 a second for ten seconds
    assert passed == 10 + 100 * 10


def test_who_pauses_is_forgotten() -> None:
    pace = PublishRateLimit(10, burst=10)
    for number in range(1000):
        pace.admit(f"p{number}", 5, now=0.001 * number)
    assert len(pace) < 600  # half a second fills a bucket again
    for step in range(1000):
        pace.admit("p", 1, now=10 + step)
    assert len(pace) == 1


def test_names_do_not_fill_the_memory() -> None:
    pace = PublishRateLimit(1, burst=5, most=100)
    for number in range(10_000):
        assert pace.admit(f"p{number}", 9, now=0.0) == 5
    assert len(pace) == 100
    assert pace.admit("p9999", 9, now=0.0) == 0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    pace = PublishRateLimit(1000, burst=2)
    assert [pace.admit("p", 2, now) for now in (5.0, 4.0, 5.0, 5.001)] == [2, 0, 0, 1]


def test_refusals() -> None:
    with pytest.raises(ParameterError, match="rate is 0; give events a second, above 0"):
        PublishRateLimit(0)
    with pytest.raises(ParameterError, match="burst is 0 and most 65536; give at least 1 of each"):
        PublishRateLimit(1, burst=0)
    assert PublishRateLimit(1000).reason("p") == (
        "publisher 'p' sends more than 1,000 events a second; slow down, or raise serve --limit rate="
    )

"""How far somebody has read: what is written down is read back, and nothing else is taken for it."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from narrowcast.broker.positions import had_in, place_in, renewed, written
from narrowcast.broker.wire import Subjects

STORES = st.text("0123456789abcdef", min_size=1, max_size=16)
NC = Subjects("a.b")


@given(st.integers(0, 1 << 63), STORES, STORES)
def test_a_place_is_one_of_its_store(place: int, store: str, other: str) -> None:
    assert place_in(written(place, store), store) == place
    assert other == store or place_in(written(place, store), other) is None
    had = {"a b": [place, 3], "": [0]}
    assert place_in(written(place, store, had), store) == place
    assert had_in(written(place, store, had)) == had


@given(st.binary(max_size=40), STORES)
@example(b"9" * 5000 + b" a1", "a1")  # more digits than Python makes a number of
@example("²".encode() + b" a1", "a1")
def test_whatever_somebody_writes_is_a_place_or_nothing(payload: bytes, store: str) -> None:
    found = place_in(payload, store)
    assert found is None or payload.split(b" ")[1] == store.encode()
    assert all(isinstance(number, int) for numbers in had_in(payload).values() for number in numbers)


@given(
    st.dictionaries(st.sampled_from("pqrs"), st.integers(0, 99)),
    st.dictionaries(st.sampled_from("pqrs"), st.tuples(st.integers(0, 99), st.booleans())),
    STORES,
)
def test_a_restored_store_is_another_with_the_same_positions(
    restored: dict[str, int], positions: dict[str, tuple[int, bool]], store: str
) -> None:
    records = [(NC.store, store.encode()), (NC.joined("p"), b"\x90")]
    had = {"p": [7]}
    records += [(NC.restored(name), written(place, store, had)) for name, place in restored.items()]
    # Some were written down by somebody who did not know of this store.
    records += [
        (NC.position(name), written(place, store if own else "x")) for name, (place, own) in positions.items()
    ]
    found = dict(renewed(records, NC))
    new = found.pop(NC.store).decode()
    assert new != store
    assert found.pop(NC.joined("p")) == b"\x90"
    right = restored | {name: place for name, (place, own) in positions.items() if own}
    assert {name: place_in(found[NC.restored(name)], new) for name in right} == right
    assert len(found) == len(right)
    kept = [name for name in restored if not positions.get(name, (0, False))[1]]
    assert all(had_in(found[NC.restored(name)]) == had for name in kept)

"""What is kept of a service's answers: never more than was allowed, and what was asked for last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.events import Done
from headrace.engine.process.results import InlineResult
from headrace.engine.remote.service.cache import Kept, KeptValue, ResultCache, num_bytes_of


def answer(num_bytes: int) -> Kept:
    return Done(0, 0, result=KeptValue(b"header", memoryview(bytes(num_bytes))))


steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "get", "get", "put", "drop"]),
        st.integers(0, 1),
        st.sampled_from([b"a", b"b", b"c", b"d"]),
        st.integers(0, 4000),
    ),
    max_size=40,
)


@given(steps, st.integers(0, 9000))
def test_it_is_a_list_of_what_was_used_last_cut_off_at_the_bound(
    steps: list[tuple[str, int, bytes, int]], max_bytes: int
) -> None:
    cache = ResultCache(max_bytes)
    model: list[tuple[tuple[int, bytes], Kept]] = []  # the last one is the one that was used last
    for what, pool, key, size in steps:
        place = pool, key
        if what == "put":
            done = answer(size)
            cache.put(pool, key, done)
            model = [one for one in model if one[0] != place]
            if num_bytes_of(done) <= max_bytes:
                model.append((place, done))
                while sum(num_bytes_of(one) for _, one in model) > max_bytes:
                    del model[0]
        elif what == "get":
            found = [one for one in model if one[0] == place]
            assert cache.get(pool, key) is (found[0][1] if found else None)
            model = [one for one in model if one[0] != place] + found
        else:
            cache.drop(pool)
            model = [one for one in model if one[0][0] != pool]
        assert cache.num_bytes == sum(num_bytes_of(one) for _, one in model) <= max_bytes
        assert len(cache) == len(model)


def test_a_small_value_counts_more_than_its_bytes() -> None:
    assert num_bytes_of(Done(0, 0, result=InlineResult(b"h", bytearray(3), 3))) > 500

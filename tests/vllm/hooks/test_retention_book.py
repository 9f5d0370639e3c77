"""The book of prefixes that are evicted last."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from sparkloom.vllm.hooks.retention import KEY, group_of
from sparkloom.vllm.hooks.retention_book import Book


def consistent(book: Book) -> bool:
    listed = {block: name for name, blocks in book.groups.items() for block in blocks}
    return listed == book.owner and set(book.used) == set(book.groups) and all(book.groups.values())


STEP = st.one_of(
    st.tuples(st.just("keep"), st.sampled_from("abcd"), st.lists(st.integers(0, 30), max_size=8)),
    st.tuples(st.just("drop"), st.just(""), st.lists(st.integers(0, 30), max_size=4)),
    st.tuples(st.just("wait"), st.just(""), st.just([])),
)


@given(st.integers(0, 12), st.lists(STEP, max_size=40))
def test_it_is_bounded_and_consistent(limit: int, steps: list[tuple[str, str, list[int]]]) -> None:
    book, now = Book(limit, idle=10), 0.0
    for what, group, blocks in steps:
        now += 8 if what == "wait" else 1
        if what == "keep":
            book.keep(group, blocks, now)
            assert all(now - used <= 10 for used in book.used.values())
        for block in blocks if what == "drop" else []:
            book.drop(block)
            assert block not in book
        assert len(book) <= limit
        assert consistent(book)
    book.clear()
    assert not len(book)
    assert consistent(book)


def test_the_group_unused_for_longest_gives_way_whole() -> None:
    book = Book(6, idle=100)
    book.keep("a", [1, 2, 3], 0)
    book.keep("b", [4, 5], 1)
    book.keep("a", [1], 2)
    book.keep("c", [6, 7], 3)
    assert list(book.groups) == ["a", "c"]
    assert (book.demoted, book.declined) == (1, 0)
    book.keep("c", range(10, 20), 4)
    assert list(book.groups) == ["c"]
    assert len(book) == 6
    assert book.declined == 6


def test_who_asks_for_what() -> None:
    def request(extra: object) -> object:
        return SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra))

    assert group_of(request({KEY: "agent-7"})) == "agent-7"
    for wrong in (None, {}, {KEY: ""}, {KEY: 7}, {KEY: "x" * 129}):
        assert group_of(request(wrong)) is None
    assert group_of(SimpleNamespace(sampling_params=None)) is None

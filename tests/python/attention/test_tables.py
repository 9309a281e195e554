"""Tables from one form to another, against plain loops and against the core's own."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import octavo
from octavo.attention import reference
from octavo.errors import RequestError

UNREAD = 2**31 - 1


def int32(values):
    return np.array(values, np.int32)


@st.composite
def tables(draw):
    size = draw(st.integers(1, 256))
    lens = draw(st.lists(st.integers(0, 5 * size), max_size=5))
    width = max([-(-n // size) for n in lens], default=0) + draw(st.integers(0, 2))
    padded = np.full((len(lens), width), UNREAD, np.int32)
    for row, length in enumerate(lens):
        count = -(-length // size)
        ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count))
        padded[row, :count] = ids
    return padded, int32(lens).reshape(-1), size


@given(tables(), st.integers(0, 3))
def test_csr_and_back_is_the_same_table(given_, more):
    padded, lens, size = given_
    indptr, indices, last = reference.tables_to_csr(padded, lens, size)
    assert [part.dtype for part in (indptr, indices, last)] == [np.int32] * 3
    ids = [padded[row, : -(-n // size)].tolist() for row, n in enumerate(lens)]
    assert indices.tolist() == [*chain(*ids)]
    assert indptr.tolist() == [sum(map(len, ids[:row])) for row in range(len(lens) + 1)]
    assert last.tolist() == [(n - 1) % size + 1 if n else 0 for n in lens.tolist()]
    longest = max(map(len, ids), default=0)
    for width in (None, longest + more):
        again, found = reference.csr_to_tables(indptr, indices, last, size, width=width)
        assert found.tolist() == lens.tolist()
        assert again.shape == (len(lens), longest if width is None else width)
        rows = zip(again.tolist(), ids, strict=True)
        assert all(
            row[: len(wanted)] == wanted and not any(row[len(wanted) :]) for row, wanted in rows
        )


@given(tables(), st.data())
def test_slots_equal_a_loop(given_, data):
    padded, lens, size = given_
    counts = [data.draw(st.integers(0, n) if n else st.integers(0, 2)) for n in lens.tolist()]
    starts = int32([0, *np.cumsum(counts)])

    def slots(row, length, count):
        if length == 0:
            return [-1] * count
        return [
            int(padded[row, p // size]) * size + p % size for p in range(length - count, length)
        ]

    rows = list(enumerate(lens.tolist()))
    every = reference.slots_from_tables(padded, lens, size)
    assert every.dtype == np.int64
    assert every.tolist() == [*chain(*(slots(row, n, n) for row, n in rows))]
    queries = reference.slots_from_tables(padded, lens, size, starts)
    assert queries.tolist() == [*chain(*(slots(row, n, counts[row]) for row, n in rows))]


def test_forms_equal_those_of_the_core():
    cache = octavo.KVCache(64, 4)
    seqs, lens = [cache.open() for _ in range(4)], [6, 0, 1, 12]
    for seq, length in zip(seqs, lens, strict=True):
        cache.reserve(seq, length)
    padded = cache.tables(seqs)
    for ours, theirs in zip(
        reference.tables_to_csr(padded, int32(lens), 4), cache.csr(seqs, lens), strict=True
    ):
        assert np.array_equal(ours, theirs)
    starts = [2, 0, 0, 12]
    query_start = int32([0, *np.cumsum([n - s for n, s in zip(lens, starts, strict=True)])])
    ours = reference.slots_from_tables(padded, int32(lens), 4, query_start)
    theirs = cache.slots(seqs, starts, [n - s for n, s in zip(lens, starts, strict=True)])
    assert np.array_equal(ours, theirs)


CSR = {
    "indptr": int32([0, 2, 3]),
    "indices": int32([7, 3, 5]),
    "last_page_len": int32([1, 4]),
    "block_size": 4,
}
TABLES = {"block_tables": int32([[7, 3]]), "seq_lens": int32([6]), "block_size": 4}
BAD = [
    *[
        ("csr_to_tables", CSR, *case)
        for case in [
            ("indptr", int32([1, 2, 3])),
            ("indptr", int32([0, 2, 1])),
            ("indptr", int32([])),
            ("indptr", [0, 2, 3]),
            ("indptr", np.array([0, 2, 3])),
            ("indices", int32([7, 3])),
            ("indices", int32([7, -3, 5])),
            ("indices", np.array([7, 3, 5])),
            ("last_page_len", int32([1])),
            ("last_page_len", int32([1, 5])),
            ("last_page_len", int32([0, 4])),
            ("last_page_len", int32([-1, 4])),
            ("block_size", 0),
            ("block_size", 257),
            ("block_size", True),
            ("width", 1),
        ]
    ],
    *[
        (call, TABLES, *case)
        for call in ("tables_to_csr", "slots_from_tables")
        for case in [
            ("block_tables", [[7, 3]]),
            ("block_tables", np.array([[7, 3]])),
            ("block_tables", int32([[7, -3]])),
            ("seq_lens", int32([9])),
            ("seq_lens", int32([-1])),
            ("seq_lens", int32([6, 1])),
            ("block_size", 0),
            ("block_size", 257),
            ("block_size", 4.0),
        ]
    ],
    *[
        ("slots_from_tables", TABLES, "query_start", starts)
        for starts in [int32([0]), int32([1, 2]), int32([0, -1]), [0, 2], np.array([0, 2])]
    ],
    ("slots_from_tables", {**TABLES, "query_start": int32([0, 7])}, "seq_lens", int32([6])),
]


@pytest.mark.parametrize(("call", "good", "name", "value"), BAD)
def test_bad_argument_is_named(call, good, name, value):
    with pytest.raises(RequestError) as caught:
        getattr(reference, call)(**{**good, name: value})
    assert caught.value.argument == name


def test_a_row_longer_than_int32_is_refused():
    many = int32(np.zeros(2**23 + 1))
    with pytest.raises(RequestError, match="indptr"):
        reference.csr_to_tables(int32([0, len(many)]), many, int32([1]), 256)

"""Merged partial results equal the unsplit ones."""

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.attention import reference
from octavo.errors import RequestError
from support.plain_attention import TOLERANCE, Filled, plain_attention


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@given(cuts=st.lists(st.integers(0, 5), max_size=4).map(sorted))
def test_merged_parts_of_the_context_equal_the_whole(dtype, cuts):
    filled = Filled([23], block_size=4, dtype=np.dtype(dtype).name)
    q = filled.queries(1, 4, dtype)
    bounds = [0, *cuts, 6]
    parts = []
    for begin, end in pairwise(bounds):
        tables = filled.block_tables[:, begin : max(end, begin)]
        length = max(0, min(23, end * 4) - begin * 4)
        lens = np.array([length], np.int32)
        parts.append(reference.decode(filled.kv, 0, q, tables, lens, return_lse=True))
    out, lse = reference.merge_states(*(np.stack(each) for each in zip(*parts, strict=True)))
    expected, logs = plain_attention(q, filled.keys[0], filled.values[0])
    close = 3 * TOLERANCE[out.dtype.name]
    np.testing.assert_allclose(out.astype(float), expected, rtol=close, atol=close)
    np.testing.assert_allclose(lse, logs, rtol=1e-5, atol=1e-5)
    assert out.dtype == q.dtype
    assert lse.dtype == (np.float64 if dtype is np.float64 else np.float32)


def test_shared_prefix_is_read_once_by_many_queries():
    filled = Filled([16, 5, 9], block_size=4)
    q = filled.queries(2, 4, np.float32)
    prefix, table = filled.seq_lens[:1], filled.block_tables[:1]
    # All queries stand behind the prefix, so that it is no causal row of its own: a row each.
    both = (np.repeat(table, 2, axis=0), np.repeat(prefix, 2))
    first = reference.decode(filled.kv, 0, q, *both, return_lse=True)
    rest = (filled.block_tables[1:], filled.seq_lens[1:])
    second = reference.decode(filled.kv, 0, q, *rest, return_lse=True)
    out, _ = reference.merge_states(*(np.stack(pair) for pair in zip(first, second, strict=True)))
    for row in range(2):
        keys = np.concatenate([filled.keys[0], filled.keys[row + 1]])
        values = np.concatenate([filled.values[0], filled.values[row + 1]])
        expected, _ = plain_attention(q[row : row + 1], keys, values)
        np.testing.assert_allclose(out[row], expected[0], atol=3e-6)


def test_empty_parts_give_zero_and_minus_infinity_whatever_they_hold():
    out = np.full((2, 3, 2, 4), np.nan, np.float32)
    lse = np.full((2, 3, 2), -np.inf, np.float32)
    out[1, 1], lse[1, 1] = 5.0, 2.0
    merged, logs = reference.merge_states(out, lse)
    assert (merged[[0, 2]] == 0).all()
    assert (logs[[0, 2]] == -np.inf).all()
    assert (merged[1] == 5).all()
    assert (logs[1] == 2).all()


def test_huge_log_sums_do_not_overflow():
    lse = np.array([[[1e30]], [[1e30]], [[-1e30]]], np.float32)
    out = np.array([[[[2.0]]], [[[4.0]]], [[[8.0]]]], np.float32)
    merged, logs = reference.merge_states(out, lse)
    assert merged.item() == 3
    assert logs.item() == np.float32(1e30)


def test_nan_is_passed_on():
    out = np.ones((2, 1, 1, 2), np.float32)
    merged, logs = reference.merge_states(out, np.array([[[0.0]], [[np.nan]]], np.float32))
    assert np.isnan(merged).all()
    assert np.isnan(logs).all()


@pytest.mark.parametrize(
    ("out", "lse", "name"),
    [
        (np.zeros((0, 1, 2), np.float32), np.zeros((0, 1), np.float32), "out"),
        (np.zeros((2, 1, 2), np.int32), np.zeros((2, 1), np.float32), "out"),
        ([[[1.0]]], np.zeros((2, 1), np.float32), "out"),
        (np.zeros((2, 1, 2), np.float32), np.zeros((2, 2), np.float32), "lse"),
        (np.zeros((2, 1, 2), np.float32), np.zeros((2, 1), np.float16), "lse"),
    ],
)
def test_bad_states_are_named(out, lse, name):
    with pytest.raises(RequestError) as caught:
        reference.merge_states(out, lse)
    assert caught.value.argument == name

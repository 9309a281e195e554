"""Decode and prefill over pages against float64 over contiguous keys and values."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.attention import attend, reference
from support.plain_attention import TOLERANCE, Filled, plain_attention

BF16 = ml_dtypes.bfloat16
# The model's dtype and the memory's.
DTYPES = [
    (np.float64, "float64"),
    (np.float32, "float32"),
    (np.float16, "float16"),
    (BF16, "bfloat16"),
    (np.float32, "float8_e4m3"),
    (BF16, "float8_e4m3"),
    (np.float64, "float8_e4m3"),
    (BF16, "bytes"),
    (np.float64, "float32"),
    (np.float32, "float64"),
]


def ragged(size):
    return [0, 1, size - 1, size, size + 1, 5 * size, 5 * size + 1]


def log_sum_tolerance(lse, q, filled):
    """In float64 if queries or memory are, and exact then; else in float32."""
    exact = "float64" in (q.dtype.name, filled.spec.dtype)
    assert lse.dtype == (np.float64 if exact else np.float32)
    return 1e-12 if exact else 1e-5


def check_decode(filled, group, dtype, **options):
    heads = group * filled.spec.num_kv_heads
    q = filled.queries(len(filled.rows), heads, dtype)
    before = filled.bytes()
    out, lse = reference.decode(
        filled.kv,
        filled.layer,
        q,
        filled.block_tables,
        filled.seq_lens,
        return_lse=True,
        **options,
    )
    assert out.dtype == q.dtype
    assert filled.bytes() == before
    close, near = TOLERANCE[out.dtype.name], log_sum_tolerance(lse, q, filled)
    for row in filled.rows:
        expected = plain_attention(
            q[row : row + 1], filled.keys[row], filled.values[row], **options
        )
        np.testing.assert_allclose(out[row].astype(float), expected[0][0], rtol=close, atol=close)
        np.testing.assert_allclose(lse[row], expected[1][0], rtol=near, atol=near)
    return out


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("dtype", "stored"), DTYPES)
@pytest.mark.parametrize(("group", "head_dim"), [(1, 8), (2, 64), (4, 80), (8, 16), (3, 6)])
def test_decode_equals_contiguous_attention(layout, dtype, stored, group, head_dim):
    shape = {"block_size": 4, "head_dim": head_dim, "dtype": stored, "layout": layout}
    check_decode(Filled(ragged(4), **shape), group, dtype)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("size", [1, 2, 3, 16, 100, 256])
def test_decode_takes_every_block_size(layout, size):
    check_decode(Filled(ragged(size), block_size=size, layout=layout, layer=1), 2, np.float32)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
def test_decode_takes_every_head_dim_of_the_kernels(head_dim):
    check_decode(Filled([33, 7], block_size=16, head_dim=head_dim), 4, np.float32)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("stored", ["float32", "float8_e4m3"])
def test_values_may_be_of_another_dim_than_keys(layout, stored):
    shape = {"block_size": 4, "head_dim": 8, "v_head_dim": 6, "layout": layout, "dtype": stored}
    assert check_decode(Filled(ragged(4), **shape), 2, np.float32).shape == (7, 4, 6)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_fp8_scales_may_differ_by_head(layout):
    scales = {"k_scale": [0.01, 0.03], "v_scale": (0.02, 0.005)}
    shape = {"block_size": 4, "dtype": "float8_e4m3", "layout": layout, **scales}
    check_decode(Filled(ragged(4), **shape), 3, np.float32)


@pytest.mark.parametrize("scale", [0.5, 0.0, -1.0, np.float32(2)])
def test_scale_is_taken_in_place_of_the_default(scale):
    check_decode(Filled(ragged(4), block_size=4), 2, np.float32, scale=scale)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 9, 1000])
def test_window_counts_the_own_token(window):
    check_decode(Filled(ragged(4), block_size=4), 2, np.float32, window=window)


@pytest.mark.parametrize("window", [1, 4, 6])
def test_tokens_outside_the_window_are_not_read(window):
    filled = Filled([18], block_size=4)
    for position in range(18 - window):
        filled.kv.k(0)[filled.place(0, position)] = np.nan
        filled.kv.v(0)[filled.place(0, position)] = np.nan
    check_decode(filled, 2, np.float32, window=window)


def test_empty_batch_gives_empty_output():
    filled = Filled([], block_size=4)
    assert check_decode(filled, 2, np.float32).shape == (0, 4, 8)


def test_rows_do_not_depend_on_the_batch():
    filled = Filled([40, 3, 17, 0, 25], block_size=4)
    q = filled.queries(5, 4, np.float32)
    together = reference.decode(filled.kv, 0, q, filled.block_tables, filled.seq_lens)
    for row in filled.rows:
        one = slice(row, row + 1)
        tables, lens = filled.block_tables[one], filled.seq_lens[one]
        alone = reference.decode(filled.kv, 0, q[one], tables, lens)
        assert np.array_equal(alone[0], together[row])


def test_infinite_scores_give_no_nan_where_the_plain_softmax_has_none():
    filled = Filled([5, 5], block_size=4)
    filled.kv.k(0)[filled.place(0, 2)] = -np.inf
    for position in range(5):
        filled.kv.k(0)[filled.place(1, position)] = -np.inf
    q = np.ones((2, 2, 8), np.float32)
    args = (filled.block_tables, filled.seq_lens)
    out, lse = reference.decode(filled.kv, 0, q, *args, return_lse=True)
    assert np.isfinite(out).all()
    assert np.isfinite(lse[0]).all()
    assert (out[1] == 0).all()
    assert (lse[1] == -np.inf).all()


def check_prefill(filled, counts, group, dtype, **options):
    query_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    q = filled.queries(int(query_start[-1]), group * filled.spec.num_kv_heads, dtype)
    args = (query_start, filled.block_tables, filled.seq_lens)
    out, lse = reference.prefill(filled.kv, filled.layer, q, *args, return_lse=True, **options)
    assert out.dtype == q.dtype
    close, near = TOLERANCE[out.dtype.name], log_sum_tolerance(lse, q, filled)
    for row in filled.rows:
        part = slice(query_start[row], query_start[row + 1])
        expected = plain_attention(q[part], filled.keys[row], filled.values[row], **options)
        np.testing.assert_allclose(out[part].astype(float), expected[0], rtol=close, atol=close)
        np.testing.assert_allclose(lse[part], expected[1], rtol=near, atol=near)
    return q, out


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("dtype", "stored"), DTYPES)
@pytest.mark.parametrize("group", [1, 3])
def test_prefill_equals_contiguous_attention(layout, dtype, stored, group):
    filled = Filled([0, 1, 3, 4, 5, 20, 21, 9], block_size=4, dtype=stored, layout=layout)
    # All of it, a chunk, a decode, none, and padding.
    check_prefill(filled, [2, 1, 3, 2, 1, 20, 0, 5], group, dtype)


@pytest.mark.parametrize("window", [1, 3, 4, 7, 50])
def test_prefill_slides_the_window_with_each_query(window):
    check_prefill(Filled([21, 5, 9], block_size=4), [21, 1, 4], 2, np.float32, window=window)


def test_prefill_of_one_query_is_a_decode():
    filled = Filled([7, 20], block_size=4)
    q, out = check_prefill(filled, [1, 1], 2, np.float32)
    assert np.array_equal(
        out, reference.decode(filled.kv, 0, q, filled.block_tables, filled.seq_lens)
    )


@pytest.mark.parametrize(("tile", "scores"), [(1, 1), (64, 300), (200, 10**6)])
def test_tiles_and_runs_of_queries_change_nothing(monkeypatch, tile, scores):
    monkeypatch.setattr(attend, "_TILE", tile)
    monkeypatch.setattr(attend, "_SCORES", scores)
    for layout, window in itertools.product(("NHD", "HND"), (None, 6)):
        filled = Filled([41, 20, 0, 7], block_size=4, layout=layout)
        check_prefill(filled, [41, 7, 1, 1], 2, np.float32, window=window)
        check_decode(filled, 2, np.float32, window=window)


@given(st.data())
def test_any_shape_equals_contiguous_attention(data):
    size = data.draw(st.integers(1, 9))
    lens = data.draw(st.lists(st.integers(0, 30), max_size=4))
    counts = [data.draw(st.integers(0, length) if length else st.just(1)) for length in lens]
    dtype, stored = data.draw(st.sampled_from(DTYPES))
    filled = Filled(
        lens,
        seed=data.draw(st.integers(0, 9)),
        block_size=size,
        layer=data.draw(st.integers(0, 1)),
        num_kv_heads=data.draw(st.integers(1, 3)),
        head_dim=2 * data.draw(st.integers(1, 5)),
        v_head_dim=2 * data.draw(st.integers(1, 5)),
        dtype=stored,
        layout=data.draw(st.sampled_from(["NHD", "HND"])),
    )
    group = data.draw(st.integers(1, 3))
    options = {
        "window": data.draw(st.none() | st.integers(1, 12)),
        "scale": data.draw(st.none() | st.floats(-2, 2)),
    }
    check_prefill(filled, counts, group, dtype, **options)
    check_decode(filled, group, dtype, **options)

"""Every shipped attention kernel against float64, over shapes, lengths, layouts and windows."""

import itertools

import numpy as np
import pytest

from octavo.attention import kernels
from octavo.attention.dtypes import FP8
from world import DTYPES, KernelBackend, check_decode, check_prefill, filled, ragged

CORES = [pair for pair in kernels.PAIRS if pair not in kernels.TENSOR_PAIRS or pair[1] != FP8]
# 1 and 256 are the limits; 3 and 24 divide nothing.
SIZES = itertools.cycle([16, 1, 64, 3, 256, 24])
LAYOUTS = itertools.cycle(["NHD", "HND"])
WINDOWS = itertools.cycle([None, 5, 129])


def cases(pairs, dims, groups):
    """Each of them, with block sizes, layouts and windows in turn."""
    return [
        pytest.param(*case, next(SIZES), next(LAYOUTS), next(WINDOWS), id="-".join(map(str, case)))
        for case in itertools.product(pairs, dims, groups)
    ]


@pytest.mark.parametrize(
    ("pair", "dim", "group", "size", "layout", "window"),
    cases(CORES, kernels.HEAD_DIMS, [1, 2, 3, 4]),
)
def test_decode_on_cores_is_attention(launcher, pair, dim, group, size, layout, window):
    backend = KernelBackend(launcher, decode_on="cores", debug=True)
    memory = filled(ragged(size), pair, dim, size, layout)
    check_decode(backend, memory, pair[0], group, tensor=False, window=window)
    check_decode(backend, memory, pair[0], group, tensor=False)


@pytest.mark.parametrize(
    ("pair", "dim", "group", "size", "layout", "window"),
    cases(kernels.TENSOR_PAIRS, kernels.HEAD_DIMS, [1, 5, 16]),
)
def test_decode_on_tensor_cores_is_attention(launcher, pair, dim, group, size, layout, window):
    backend = KernelBackend(launcher, decode_on="tensor", debug=True)
    memory = filled(ragged(size), pair, dim, size, layout)
    check_decode(backend, memory, pair[0], group, tensor=True, window=window)
    check_decode(backend, memory, pair[0], group, tensor=True)


@pytest.mark.parametrize("pair", [("float32", "float32"), ("float32", FP8), ("float16", "float16")])
def test_decode_of_groups_beyond_a_thread_block_is_attention(backend, pair):
    memory = filled(ragged(16), pair, 64, 16, "NHD")
    for group in (6, 17, 33):
        check_decode(backend, memory, pair[0], group, tensor=pair[0] != "float32")


@pytest.mark.parametrize(
    ("pair", "dim", "group", "size", "layout", "window"),
    [
        *cases(kernels.TENSOR_PAIRS, kernels.HEAD_DIMS, [1, 3, 8]),
        # By the decode kernels, one query at a time.
        *cases([("float32", "float32"), ("float32", FP8)], [64, 80, 256], [3]),
    ],
)
def test_prefill_is_causal_attention(backend, pair, dim, group, size, layout, window):
    """Whole prompts, chunks, single decodes, and rows without queries or tokens, in one call."""
    lens = ragged(size)
    memory = filled(lens, pair, dim, size, layout)
    tensor = pair in kernels.TENSOR_PAIRS
    wanted = [0, 1, 2, 9, 0, 1, 40, 70]
    counts = [min(length, count) for length, count in zip(lens, wanted, strict=True)]
    check_prefill(backend, memory, pair[0], group, counts, tensor=tensor, window=window)
    check_prefill(backend, memory, pair[0], group, counts, tensor=tensor)


@pytest.mark.parametrize("dims", [(192, 128), (64, 256), (256, 64), (80, 96)])
@pytest.mark.parametrize("pair", kernels.PAIRS)
def test_values_may_have_another_dim_than_keys(backend, pair, dims):
    tensor = pair in kernels.TENSOR_PAIRS
    memory = filled(ragged(16), pair, dims[0], 16, "HND", v_dim=dims[1])
    for group in (2, 8):
        check_decode(
            backend, memory, pair[0], group, tensor=tensor and (pair[1] == FP8 or group > 4)
        )
    check_prefill(backend, memory, pair[0], 4, [0, 1, 9, 3, 0, 1, 20, 33], tensor=tensor)


@pytest.mark.parametrize("pair", kernels.PAIRS)
def test_queries_of_rows_without_tokens_get_nothing(backend, pair):
    """Padding has queries, and no tokens."""
    memory = filled([0, 5, 0], pair, 64, 4, "NHD")
    starts = np.array([0, 3, 5, 9], np.int32)
    q = memory.queries(9, 4, DTYPES[pair[0]])
    args = (memory.kv, 1, q, starts, memory.block_tables, memory.seq_lens)
    out, lse = backend.prefill(*args, return_lse=True)
    assert not out[:3].any()
    assert not out[5:].any()
    assert np.isneginf(lse[:3]).all()
    assert np.isfinite(lse[3:5]).all()


@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize(("dtype", "group"), [("float32", 2), ("float16", 2), ("float16", 8)])
def test_nan_in_what_is_attended_to_comes_out(backend, where, dtype, group):
    """It is never taken for an empty row."""
    memory = filled([40], (dtype, dtype), 64, 16, "NHD")
    q = memory.queries(1, 2 * group, dtype)
    if where == "q":
        q[0, 1, 3] = np.nan
    else:
        plane = memory.kv.k(1) if where == "k" else memory.kv.v(1)
        plane[(*memory.place(0, 33), 0, 5)] = np.nan
    args = (memory.kv, 1, q, memory.block_tables, memory.seq_lens)
    out, _ = backend.decode(*args, return_lse=True)
    starts = np.array([0, 1], np.int32)
    again = backend.prefill(memory.kv, 1, q, starts, *args[3:])
    assert np.isnan(out[0, 1]).any()
    assert np.array_equal(np.isnan(out), np.isnan(again))

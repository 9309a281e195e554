"""Every shipped prefill kernel against float64, over shapes, lengths, layouts and windows."""

import numpy as np
import pytest

from cases import cases
from octavo.attention import kernels
from octavo.attention.dtypes import FP8
from world import DTYPES, check_prefill, filled, ragged


@pytest.mark.parametrize(
    "case",
    [
        *cases(kernels.TENSOR_PAIRS, kernels.HEAD_DIMS, [1, 3, 8]),
        # By the decode kernels, one query at a time.
        *cases([("float32", "float32"), ("float32", FP8)], [64, 80, 256], [3]),
    ],
)
def test_prefill_is_causal_attention(backend, case):
    """Whole prompts, chunks, single decodes, and rows without queries or tokens, in one call."""
    lens = ragged(case.size)
    memory = filled(lens, case.pair, case.dim, case.size, case.layout)
    tensor = case.pair in kernels.TENSOR_PAIRS
    wanted = [0, 1, 2, 9, 0, 1, 40, 70]
    counts = [min(length, count) for length, count in zip(lens, wanted, strict=True)]
    check_prefill(
        backend, memory, case.pair[0], case.group, counts, tensor=tensor, window=case.window
    )
    check_prefill(backend, memory, case.pair[0], case.group, counts, tensor=tensor)


@pytest.mark.parametrize("window", [None, 2**31 - 1])
@pytest.mark.parametrize("pair", kernels.PAIRS)
def test_queries_of_rows_without_tokens_get_nothing(backend, pair, window):
    """Padding has queries, and no tokens."""
    memory = filled([0, 5, 0], pair, 64, 4, "NHD")
    starts = np.array([0, 3, 5, 9], np.int32)
    q = memory.queries(9, 4, DTYPES[pair[0]])
    args = (memory.kv, 1, q, starts, memory.block_tables, memory.seq_lens)
    out, lse = backend.prefill(*args, window=window, return_lse=True)
    assert not out[:3].any()
    assert not out[5:].any()
    assert np.isneginf(lse[:3]).all()
    assert np.isfinite(lse[3:5]).all()

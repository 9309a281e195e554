"""Worlds for the kernels: filled memory, queries, the answer in float64, and what may be off."""

import ml_dtypes
import numpy as np

from octavo.attention import reference
from octavo.attention.dtypes import FP8
from octavo.attention.kernel_backend import KernelBackend
from support.plain_attention import Filled, plain_attention

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
# Half the distance between two neighbouring numbers, relative to them.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Of a log-sum-exp: float32 arithmetic in base 2, on scores of about 10.
LOG_SUM = 5e-6


def ragged(size):
    """Lengths around a block's, and of a few blocks, with one to be split."""
    return [0, 1, max(size - 1, 2), size, size + 1, 5 * size, 5 * size + 1, 300]


def filled(lens, pair, dim, block_size, layout, **shape):
    """Memory whose rows have these lengths, NaN wherever no row owns a slot.

    Block ids come from the whole of a pool that is mostly unused; unused entries are 2^31-1.
    """
    if pair[1] == FP8:
        shape = {"k_scale": (0.02, 0.05), "v_scale": (0.03, 0.02), **shape}
    return Filled(
        lens,
        dtype=pair[1],
        head_dim=dim,
        block_size=block_size,
        layout=layout,
        **{"spare_blocks": 40, "layer": 1, **shape},
    )


def check_close(out, lse, expected, *, values, dtype, tensor):
    """Output and log-sum-exp are the answer's, but for what must be rounded.

    The output is rounded once; tensor cores round each weight as well, and what that shifts is at
    most that share of the largest value. float32 sums of some hundred products take the rest.
    """
    answer, logs = expected
    largest = max((np.abs(v).max() for v in values if v.size), default=0.0)
    half = ROUNDING[dtype]
    allowed = half * np.abs(answer) + (half * largest if tensor else 0.0) + 2e-6 * max(1.0, largest)
    wrong = ~(np.abs(out.astype(np.float64) - answer) <= allowed)  # NaN is wrong, too
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} outputs are off"
    assert np.array_equal(np.isneginf(lse), np.isneginf(logs))
    seen = np.isfinite(logs)
    assert np.abs(lse[seen] - logs[seen]).max(initial=0.0) <= LOG_SUM
    assert not np.isnan(lse).any()


def decoded(memory, q, window=None):
    """The answer to one query a row."""
    parts = [
        plain_attention(q[row : row + 1], memory.keys[row], memory.values[row], window=window)
        for row in memory.rows
    ]
    return np.concatenate([out for out, _ in parts]), np.concatenate([lse for _, lse in parts])


def prefilled(memory, q, starts, window=None):
    """The answer to runs of queries."""
    parts = [
        plain_attention(
            q[starts[row] : starts[row + 1]], memory.keys[row], memory.values[row], window=window
        )
        for row in memory.rows
    ]
    return np.concatenate([out for out, _ in parts]), np.concatenate([lse for _, lse in parts])


def check_decode(backend, memory, dtype, group, *, tensor, window=None):
    """Decodes, compares, and sees that nothing was written to memory."""
    q = memory.queries(len(memory.rows), group * memory.spec.num_kv_heads, DTYPES[dtype])
    before = memory.bytes()
    args = (memory.kv, memory.layer, q, memory.block_tables, memory.seq_lens)
    out, lse = backend.decode(*args, window=window, return_lse=True)
    assert out.dtype == DTYPES[dtype]
    expected = decoded(memory, q, window)
    check_close(out, lse, expected, values=memory.values, dtype=dtype, tensor=tensor)
    assert memory.bytes() == before
    return out, lse


def starts_of(counts):
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def check_prefill(backend, memory, dtype, group, counts, *, tensor, window=None):
    """The same for the last `counts` tokens of the rows."""
    starts = starts_of(counts)
    heads = group * memory.spec.num_kv_heads
    q = memory.queries(int(starts[-1]), heads, DTYPES[dtype])
    before = memory.bytes()
    args = (memory.kv, memory.layer, q, starts, memory.block_tables, memory.seq_lens)
    out, lse = backend.prefill(*args, window=window, return_lse=True)
    expected = prefilled(memory, q, starts, window)
    check_close(out, lse, expected, values=memory.values, dtype=dtype, tensor=tensor)
    assert memory.bytes() == before
    return out, lse


__all__ = [
    "DTYPES",
    "LOG_SUM",
    "KernelBackend",
    "check_close",
    "check_decode",
    "check_prefill",
    "decoded",
    "filled",
    "prefilled",
    "ragged",
    "reference",
    "starts_of",
]

"""What holds for decode and prefill alike."""

import numpy as np
import pytest

from octavo.attention import kernels
from octavo.attention.dtypes import FP8
from world import check_decode, check_prefill, filled, ragged


@pytest.mark.parametrize("dims", [(192, 128), (64, 256), (256, 64), (80, 96)])
@pytest.mark.parametrize("pair", kernels.PAIRS)
def test_values_may_have_another_dim_than_keys(backend, pair, dims):
    tensor = pair in kernels.TENSOR_PAIRS
    memory = filled(ragged(16), pair, dims[0], 16, "HND", v_head_dim=dims[1])
    for group in (2, 8):
        check_decode(
            backend, memory, pair[0], group, tensor=tensor and (pair[1] == FP8 or group > 4)
        )
    check_prefill(backend, memory, pair[0], 4, [0, 1, 9, 3, 0, 1, 20, 33], tensor=tensor)


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

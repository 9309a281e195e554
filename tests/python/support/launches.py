"""Small worlds for a back end whose launches are only recorded."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from octavo.attention import KVSpec, PagedKV

BF16 = ml_dtypes.bfloat16
FP8 = "float8_e4m3"
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": BF16}


def memory(dtype="float16", **changes):
    shape = {"num_layers": 2, "num_blocks": 8, "block_size": 16, "num_kv_heads": 2}
    scales = {"k_scale": [0.5, 0.25], "v_scale": 0.125} if dtype == FP8 else {}
    return PagedKV(KVSpec(**{**shape, "head_dim": 64, "dtype": dtype, **scales, **changes}))


def tables_of(rows, width, lens=0):
    return np.zeros((rows, width), np.int32), np.full(rows, lens, np.int32)


def decoded(attention, kv, *, queries=3, group=1, width=4, dtype=np.float16, **options):
    """The launches of a decode."""
    q = np.zeros((queries, group * kv.spec.num_kv_heads, kv.spec.head_dim), dtype)
    launcher = attention.launcher
    launcher.launches.clear()
    attention.decode(kv, 0, q, *tables_of(queries, width), **options)
    return launcher.launches


def captured(attention, call):
    """What a call does while a graph is captured."""
    attention.launcher.is_capturing = True
    try:
        return call()
    finally:
        attention.launcher.is_capturing = False

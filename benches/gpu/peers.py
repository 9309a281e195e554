"""Other libraries' attention on the same card, where they are installed: PyTorch, FlashInfer."""

from __future__ import annotations

import importlib
import importlib.util


def torch_of(machine):
    """PyTorch, where it is installed and sees the card."""
    if not machine.is_card or importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    return torch if torch.cuda.is_available() else None


def torch_decode(torch, half, shape, length):
    """Decode over contiguous keys and values: a call. `shape`: rows, query heads, KV heads, dim."""
    rows, heads, kv_heads, dim = shape
    dtype = getattr(torch, half)
    q = torch.randn(rows, heads, 1, dim, dtype=dtype, device="cuda")
    k, v = (torch.randn(rows, kv_heads, length, dim, dtype=dtype, device="cuda") for _ in "kv")
    return _attend(torch, q, k, v)


def torch_prefill(torch, half, shape, length):
    """A chunk of queries at the end of a row. `shape`: queries, query heads, KV heads, dim."""
    queries, heads, kv_heads, dim = shape
    dtype = getattr(torch, half)
    q = torch.randn(1, heads, queries, dim, dtype=dtype, device="cuda")
    k, v = (torch.randn(1, kv_heads, length, dim, dtype=dtype, device="cuda") for _ in "kv")
    lower = importlib.import_module("torch.nn.attention.bias").causal_lower_right
    return _attend(torch, q, k, v, attn_mask=lower(queries, length))


def _attend(torch, q, k, v, **options):
    """Scaled dot-product attention, its KV heads shared by groups; repeated where it cannot."""
    attend = torch.nn.functional.scaled_dot_product_attention
    try:
        attend(q, k, v, enable_gqa=True, **options)
    except (RuntimeError, TypeError, NotImplementedError):
        group = q.shape[1] // k.shape[1]
        k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
        return lambda: attend(q, k, v, **options)
    return lambda: attend(q, k, v, enable_gqa=True, **options)


def flashinfer_decode(torch, half, shape, tables, block_size):
    """FlashInfer's decode over pages: a call, or None where it is not installed.

    `shape`: rows, query heads, KV heads, dim; `tables`: block ids on the host, all in use.
    """
    if importlib.util.find_spec("flashinfer") is None:
        return None
    flashinfer = importlib.import_module("flashinfer")
    rows, heads, kv_heads, dim = shape
    dtype = getattr(torch, half)
    blocks = int(tables.size)
    cache = torch.randn(blocks, 2, block_size, kv_heads, dim, dtype=dtype, device="cuda")
    q = torch.randn(rows, heads, dim, dtype=dtype, device="cuda")
    workspace = torch.zeros(2**27, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_tensor_cores=heads // kv_heads >= 4
    )
    int32 = {"dtype": torch.int32, "device": "cuda"}
    indptr = torch.arange(rows + 1, **int32) * tables.shape[1]
    indices = torch.as_tensor(tables.reshape(-1), **int32)
    last = torch.full((rows,), block_size, **int32)
    wrapper.plan(
        indptr, indices, last, heads, kv_heads, dim, block_size, q_data_type=dtype, data_type=dtype
    )
    return lambda: wrapper.run(q, cache)

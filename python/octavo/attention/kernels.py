"""The catalogue of kernels: what each instantiation is called, takes, and needs of a device.

Every function returns a `Kernel` for some dtypes and dims, the same one each time; `shipped` lists
those that a machine without a device checks one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

from octavo.attention.dtypes import FP8
from octavo.attention.launch import Kernel

__all__ = [
    "CORES_GROUPS",
    "HEAD_DIMS",
    "PAIRS",
    "TENSOR_PAIRS",
    "Shipped",
    "append",
    "copy_blocks",
    "csr_to_tables",
    "decode_cores",
    "decode_mma",
    "expand_queries",
    "gather",
    "mark_used",
    "merge_states",
    "poison",
    "prefill_mma",
    "rows_at_once",
    "shipped",
    "slots_from_tables",
    "tables_to_csr",
]

# Elements of a key and of a value that kernels are made for.
HEAD_DIMS = (64, 80, 96, 128, 192, 256)
# What a model computes in, and what its memory then holds.
PAIRS = (
    ("float32", "float32"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("float32", FP8),
    ("float16", FP8),
    ("bfloat16", FP8),
)
# Tensor cores would round float32 to 11 bits.
TENSOR_PAIRS = tuple(pair for pair in PAIRS if pair[0] != "float32")
# Query heads of a KV head that a thread block of CUDA cores takes at once.
CORES_GROUPS = (1, 2, 4)
# Queries on a tensor core: the rows of its matrix.
_MMA_ROWS = 16
# Bytes of shared memory that a thread block may have on every device from sm_80 on: those of sm_86.
_SHARED = 99 * 1024

_C_TYPES = {
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    FP8: "__nv_fp8_e4m3",
}
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, FP8: 1}

_STRIDES = ("k_block", "k_slot", "k_head", "v_block", "v_slot", "v_head")
_Params = tuple[tuple[str, str], ...]


class Shipped(NamedTuple):
    """A kernel, and what its machine code must show.

    Attributes:
        kernel: The instantiation.
        max_registers: Of a thread, on every architecture; no register may be spilled.
        opcodes: Instructions that must be there.
    """

    kernel: Kernel
    max_registers: int
    opcodes: tuple[str, ...]


@cache
def append(dtype: str, kv_dtype: str) -> Kernel:
    """New keys and values to their slots."""
    params = (
        *_writes(kv_dtype, "keys", "values"),
        *_reads(dtype, "k", "v"),
        *_reads("int64", "slot_mapping"),
        *_reads("float32", "k_scale", "v_scale"),
        *_scalars("int32", "heads", "k_dim", "v_dim", "block_size"),
        *_scalars("int64", "k_token", "v_token", *_STRIDES),
    )
    return _kernel("append.cu", "append", (dtype, kv_dtype), (), params, threads=128)


@cache
def gather(kv_dtype: str) -> Kernel:
    """Blocks of rows to one token after the other; fp8 as float32."""
    out = "float32" if kv_dtype == FP8 else kv_dtype
    params = (
        *_writes(out, "k", "v"),
        *_reads(kv_dtype, "keys", "values"),
        *_reads("int32", "block_tables", "seq_lens"),
        *_reads("int64", "starts"),
        *_reads("float32", "k_scale", "v_scale"),
        *_scalars("int32", "heads", "k_dim", "v_dim", "block_size", "width"),
        *_scalars("int64", "table_stride", *_STRIDES),
    )
    return _kernel("gather.cu", "gather", (kv_dtype, out), (), params, threads=256)


@cache
def copy_blocks() -> Kernel:
    """The first tokens of blocks into others, in all layers."""
    params = (*_reads("int64", "planes"), *_reads("int32", "copies"), ("heads", "int32"))
    return _kernel("planes.cu", "copy_blocks", (), (), params, threads=256)


@cache
def mark_used() -> Kernel:
    """Which slots rows own."""
    params = (
        *_writes("uint8", "used"),
        *_reads("int32", "block_tables", "seq_lens"),
        *_scalars("int32", "block_size", "width"),
        ("table_stride", "int64"),
    )
    return _kernel("planes.cu", "mark_used", (), (), params, threads=64)


@cache
def poison() -> Kernel:
    """NaN to the slots that nobody owns, in all layers."""
    params = (
        *_reads("int64", "planes"),
        *_reads("uint8", "used"),
        ("pattern", "uint32"),
        *_scalars("int32", "heads", "block_size"),
    )
    return _kernel("planes.cu", "poison", (), (), params, threads=256)


@cache
def slots_from_tables() -> Kernel:
    """The slots of the last tokens of rows."""
    params = (
        *_writes("int64", "slots"),
        *_reads("int32", "block_tables", "seq_lens", "query_start"),
        ("block_size", "int32"),
        ("table_stride", "int64"),
    )
    return _kernel("tables.cu", "slots_from_tables", (), (), params, threads=128)


@cache
def expand_queries() -> Kernel:
    """Of each query its row and what it sees of it."""
    params = (
        *_writes("int32", "rows", "lens"),
        *_reads("int32", "query_start", "seq_lens"),
        ("num_queries", "int32"),
    )
    return _kernel("tables.cu", "expand_queries", (), (), params, threads=128)


@cache
def tables_to_csr() -> Kernel:
    """Padded tables, compressed."""
    params = (
        *_writes("int32", "indices", "last_page_len"),
        *_reads("int32", "indptr", "block_tables", "seq_lens"),
        ("block_size", "int32"),
        ("table_stride", "int64"),
    )
    return _kernel("tables.cu", "tables_to_csr", (), (), params, threads=128)


@cache
def csr_to_tables() -> Kernel:
    """Compressed tables, padded."""
    params = (
        *_writes("int32", "block_tables", "seq_lens"),
        *_reads("int32", "indptr", "indices", "last_page_len"),
        *_scalars("int32", "block_size", "width"),
    )
    return _kernel("tables.cu", "csr_to_tables", (), (), params, threads=128)


@cache
def merge_states(dtype: str, part_dtype: str) -> Kernel:
    """One attention result from those over parts of the context."""
    params = (
        *_writes(dtype, "out"),
        *_writes("float32", "lse"),
        *_reads(part_dtype, "parts"),
        *_reads("float32", "part_lse"),
        ("to_log2", "float32"),
        *_scalars("int32", "num_parts", "dim"),
        *_scalars("int64", "row_stride", "part_stride", "lse_row_stride", "lse_part_stride"),
    )
    return _kernel("merge_states.cu", "merge_states", (dtype, part_dtype), (), params, threads=128)


@cache
def decode_cores(dtype: str, kv_dtype: str, k_dim: int, v_dim: int, heads: int) -> Kernel:
    """Decode on CUDA cores, for up to so many query `heads` of a KV head at once."""
    warps = 4
    return _kernel(
        "decode_cores.cu",
        "decode_cores",
        (dtype, kv_dtype),
        (k_dim, v_dim, heads, warps),
        _decode(dtype, kv_dtype),
        threads=32 * warps,
        shared_bytes=4 * warps * heads * (v_dim + 2),
    )


@cache
def decode_mma(dtype: str, kv_dtype: str, k_dim: int, v_dim: int) -> Kernel:
    """Decode on tensor cores, for up to 16 query heads of a KV head at once."""
    warps, stages = (4, 2) if max(k_dim, v_dim) <= 128 else (2, 2)
    converted = _tiles(_MMA_ROWS, dtype, k_dim, v_dim) if kv_dtype == FP8 else 0
    a_warp = stages * _tiles(_MMA_ROWS, kv_dtype, k_dim, v_dim) + converted
    working = _tiles(_MMA_ROWS, dtype, k_dim) + warps * a_warp
    merging = 4 * warps * _MMA_ROWS * (v_dim + 2)
    return _kernel(
        "decode_mma.cu",
        "decode_mma",
        (dtype, kv_dtype),
        (k_dim, v_dim, warps, stages),
        _decode(dtype, kv_dtype),
        threads=32 * warps,
        shared_bytes=max(working, merging),
    )


@cache
def prefill_mma(dtype: str, kv_dtype: str, k_dim: int, v_dim: int) -> Kernel:
    """Causal attention of runs of queries on tensor cores."""
    warps = 4
    tokens = 64 if max(k_dim, v_dim) <= 128 else 32
    while (shared_bytes := _prefill_bytes(dtype, kv_dtype, k_dim, v_dim, tokens, warps)) > _SHARED:
        tokens //= 2
    params = (
        *_writes(dtype, "out"),
        *_writes("float32", "lse", "part_out", "part_lse"),
        *_reads(dtype, "q"),
        *_reads(kv_dtype, "keys", "values"),
        *_reads("int32", "query_start", "block_tables", "seq_lens"),
        *_reads("float32", "k_scale", "v_scale"),
        ("scale", "float32"),
        *_scalars("int32", "num_rows", "group", "block_size", "window", "split_tokens"),
        *_scalars("int64", "q_token", "table_stride", *_STRIDES),
    )
    return _kernel(
        "prefill_mma.cu",
        "prefill_mma",
        (dtype, kv_dtype),
        (k_dim, v_dim, tokens, warps),
        params,
        threads=32 * warps,
        shared_bytes=shared_bytes,
    )


def rows_at_once(kernel: Kernel) -> int:
    """Queries x heads that a thread block of an attention kernel takes at once."""
    if kernel.source == "decode_cores.cu":
        return int(kernel.name.split(",")[4])
    return _MMA_ROWS * (kernel.threads // 32 if kernel.source == "prefill_mma.cu" else 1)


def shipped() -> list[Shipped]:
    """Every instantiation with equal head dims, and what its machine code must show."""
    return [*_shipped_memory(), *_shipped_attention()]


def _shipped_memory() -> Iterator[Shipped]:
    for dtype, kv_dtype in PAIRS:
        yield Shipped(append(dtype, kv_dtype), 64, ("LDG.E.128",))
    for kv_dtype in _C_TYPES:
        yield Shipped(gather(kv_dtype), 64, ("LDG.E.128", "STG.E.128"))
    for kernel in (copy_blocks(), poison()):
        yield Shipped(kernel, 64, ("ST.E.128",))
    for kernel in (
        mark_used(),
        slots_from_tables(),
        expand_queries(),
        tables_to_csr(),
        csr_to_tables(),
    ):
        yield Shipped(kernel, 64, ())


def _shipped_attention() -> Iterator[Shipped]:
    for dtype in ("float32", "float16", "bfloat16"):
        yield Shipped(merge_states(dtype, "float32"), 64, ())
    for dtype in ("float16", "bfloat16"):
        yield Shipped(merge_states(dtype, dtype), 64, ())
    for (dtype, kv_dtype), dim in product(PAIRS, HEAD_DIMS):
        if (dtype, kv_dtype) not in TENSOR_PAIRS or kv_dtype != FP8:
            for heads in CORES_GROUPS:
                kernel = decode_cores(dtype, kv_dtype, dim, dim, heads)
                yield Shipped(kernel, 255, ("LDG.E.128",))
    for (dtype, kv_dtype), dim in product(TENSOR_PAIRS, HEAD_DIMS):
        for kernel in (
            decode_mma(dtype, kv_dtype, dim, dim),
            prefill_mma(dtype, kv_dtype, dim, dim),
        ):
            yield Shipped(kernel, 255, ("LDGSTS", "LDSM", "HMMA"))


def _decode(dtype: str, kv_dtype: str) -> _Params:
    return (
        *_writes(dtype, "out"),
        *_writes("float32", "lse", "part_out", "part_lse"),
        *_reads(dtype, "q"),
        *_reads(kv_dtype, "keys", "values"),
        *_reads("int32", "block_tables", "lens", "rows"),
        *_reads("float32", "k_scale", "v_scale"),
        ("scale", "float32"),
        *_scalars("int32", "group", "block_size", "window", "split_tokens"),
        *_scalars("int64", "q_token", "table_stride", *_STRIDES),
    )


def _prefill_bytes(
    dtype: str, kv_dtype: str, k_dim: int, v_dim: int, tokens: int, warps: int
) -> int:
    queries = _tiles(_MMA_ROWS * warps, dtype, k_dim)
    converted = _tiles(tokens, dtype, k_dim, v_dim) if kv_dtype == FP8 else 0
    return queries + 2 * _tiles(tokens, kv_dtype, k_dim, v_dim) + converted


def _tiles(tokens: int, dtype: str, *dims: int) -> int:
    """Bytes of tiles of so many tokens: the sizes of `Tile` in cuda/tiles.cuh."""
    return sum(tokens * ((dim * _BYTES[dtype] // 16) | 1) * 16 for dim in dims)


def _kernel(
    file: str,
    name: str,
    dtypes: tuple[str, ...],
    numbers: tuple[int, ...],
    params: _Params,
    *,
    threads: int,
    shared_bytes: int = 0,
) -> Kernel:
    arguments = [*(_C_TYPES[dtype] for dtype in dtypes), *map(str, numbers)]
    expression = f"{name}<{','.join(arguments)}>" if arguments else name
    return Kernel(file, expression, params, threads, shared_bytes)


def _writes(dtype: str, *names: str) -> _Params:
    return tuple((name, f"*{dtype}") for name in names)


def _reads(dtype: str, *names: str) -> _Params:
    return tuple((name, f"const *{dtype}") for name in names)


def _scalars(dtype: str, *names: str) -> _Params:
    return tuple((name, dtype) for name in names)

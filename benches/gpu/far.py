"""Memory beyond 2^31 elements, and at the top of the card: offsets and addresses of 64 bits.

The blocks in use lie around element 2^31 and at the end of a pool that fills what memory allows;
the answer is that of the same tokens in a small memory.
"""

from __future__ import annotations

import numpy as np

import machine as machines
import oracle
import pages
from octavo.attention import PagedKV, reference
from rows import Row

_SHAPE = {"num_layers": 1, "block_size": 16, "num_kv_heads": 8, "head_dim": 128}
_LENS, _GROUP = (1, 16, 40, 300), 4
# Blocks of 2^14 elements: the one with this id begins at element 2^31.
_EDGE = 2**17


def far(machine):
    half = machine.half
    spare, least = 64, (_EDGE + 64) if machine.is_card else 64
    one = pages.spec_of(half, num_blocks=1, **_SHAPE).nbytes
    blocks = least
    if machine.is_card:
        free, _ = machine.xp.cuda.Device().mem_info
        blocks = min(int(free * 0.8) // one, 2**31 - 1)
        if blocks < least:
            told = f"skipped: {free:,} bytes are free, {one * least:,} needed"
            yield Row("beyond 2^31 elements", note=told)
            return
    spec = pages.spec_of(half, num_blocks=blocks, **_SHAPE)
    top = list(range(blocks - spare // 2, blocks))
    edge = list(range(_EDGE - 8, _EDGE + 8)) if machine.is_card else list(range(16))
    kv = PagedKV(spec, xp=machine.xp)
    _check(machine, kv, [*edge, *top])
    elements = blocks * 16 * 8 * 128
    note = f"{2 * elements:.3g} elements in a layer, keys from {_address(machine, kv):#x} on"
    yield Row("append, gather, decode, prefill and copies", note=note)


def _address(machine, kv):
    return kv.k(0).data.ptr if machine.is_card else kv.k(0).ctypes.data


def _check(machine, kv, ids):
    """Everything on blocks with these ids, against a small memory on the host."""
    random, attention, host = np.random.default_rng(3), machine.make(), machine.host
    xp, half = machine.xp, machine.half
    twin = PagedKV(pages.spec_of(half, num_blocks=len(ids), **_SHAPE))
    near, lens = pages.tables_for(random, list(_LENS), twin.spec)
    unused = near == pages.UNREAD
    tables = np.where(unused, near, np.array(ids, np.int32)[np.where(unused, 0, near)])
    far_tables, far_lens = xp.asarray(tables.astype(np.int32)), xp.asarray(lens)
    k, v = (pages.normal(random, (sum(_LENS), 8, 128), half) for _ in range(2))
    slots = attention.slots_from_tables(far_tables, far_lens, 16)
    attention.append(kv, 0, xp.asarray(k), xp.asarray(v), slots)
    reference.append(twin, 0, k, v, reference.slots_from_tables(near, lens, 16))
    for name, found, expected in zip(
        "KV",
        attention.gather(kv, 0, far_tables, far_lens),
        reference.gather(twin, 0, near, lens),
        strict=True,
    ):
        oracle.check_equal(f"gather: {name}", host(found), expected)
    told = {"dtype": half, "largest": oracle.largest_value(twin, 0, near, lens), "on_tensor": True}
    q = pages.normal(random, (len(_LENS), 8 * _GROUP, 128), half)
    expected = oracle.decoded(twin, 0, q, near, lens)
    for decode_on in ("cores", "tensor"):
        found = machine.make(decode_on=decode_on).decode(
            kv, 0, xp.asarray(q), far_tables, far_lens, return_lse=True
        )
        oracle.check_attention(f"decode, {decode_on}", list(map(host, found)), expected, **told)
    starts = np.arange(len(_LENS) + 1, dtype=np.int32)
    found = attention.prefill(
        kv, 0, xp.asarray(q), xp.asarray(starts), far_tables, far_lens, return_lse=True
    )
    oracle.check_attention("prefill", list(map(host, found)), expected, **told)
    # The last block of the pool onto one before the edge.
    source, target = ids[-1], ids[0]
    kv.k(0)[source] = 3
    attention.copy_blocks(kv, xp.asarray(np.array([[source, target, 16]], np.int32)))
    if not (host(kv.k(0)[target]) == 3).all():
        raise oracle.MismatchError("copy_blocks: the block was not copied")


if __name__ == "__main__":
    machines.run(far)

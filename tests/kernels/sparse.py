"""Memory of more elements than the machine has: address space, of which what is touched exists."""

import mmap

import numpy as np

from octavo.attention import PagedKV
from support.plain_attention import plain_attention
from world import check_close, starts_of

# Python has the name from 3.13 on; the number is Linux's.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class Sparse:
    """A float16 memory in address space that nobody reserved, `before` bytes behind its begin."""

    def __init__(self, spec, before=0):
        self.spec = spec
        planes = []
        for shape in (spec.k_shape, spec.v_shape):
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
            space = mmap.mmap(-1, before + 2 * int(np.prod(shape)), flags=flags)
            planes.append(np.frombuffer(space, np.float16, offset=before).reshape(shape))
        self.kv = PagedKV(spec, arrays=[tuple(planes)])


def round_trip(backend, kv, table, length, group):
    """Appends, gathers, decodes and prefills through the table, against the plain answer."""
    spec, random = kv.spec, np.random.default_rng(0)
    tables, lens = np.array([table], np.int32), np.array([length], np.int32)
    shape = (length, spec.num_kv_heads, spec.head_dim)
    k, v = (random.standard_normal(shape).astype(np.float16) for _ in range(2))
    slots = backend.slots_from_tables(tables, lens, spec.block_size)
    backend.append(kv, 0, k, v, slots)
    pages = kv.pages(0)[0]
    at = int(slots[-1])
    assert np.array_equal(pages[at // spec.block_size, at % spec.block_size], k[-1])
    found = backend.gather(kv, 0, tables, lens)
    assert np.array_equal(found[0], k)
    assert np.array_equal(found[1], v)

    q = random.standard_normal((3, group * spec.num_kv_heads, spec.head_dim)).astype(np.float16)

    values = [v.astype(np.float64)]
    out, lse = backend.decode(kv, 0, q[-1:], tables, lens, return_lse=True)
    tensor = group > 4
    expected = plain_attention(q[-1:], k, v)
    check_close(out, lse, expected, values=values, dtype="float16", tensor=tensor)
    out, lse = backend.prefill(kv, 0, q, starts_of([3]), tables, lens, return_lse=True)
    expected = plain_attention(q, k, v)
    check_close(out, lse, expected, values=values, dtype="float16", tensor=True)

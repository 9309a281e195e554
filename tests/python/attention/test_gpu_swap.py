"""Swaps on a GPU, on streams that run as late as CUDA allows: a missing wait is a wrong byte."""

import numpy as np
import pytest

from octavo.attention import KVSpec, PagedKV, gpu, reference
from octavo.attention.gpu_swap import StagedRows
from octavo.attention.swap import receive, send
from octavo.errors import StateError
from support import fake_cuda
from support.fake_cuda import capturing
from support.fake_cupy import install

BLOCKS, LAYERS = 12, 3
SHAPE = {"num_layers": LAYERS, "block_size": 16, "num_kv_heads": 2, "head_dim": 64}


@pytest.fixture
def cupy(monkeypatch):
    return install(monkeypatch)


class Pair:
    """A memory on the host and the same on a device, and how blocks of it are swapped there."""

    def __init__(self, cupy, *, batch_blocks=2, adopted=False, **shape):
        spec = KVSpec(num_blocks=BLOCKS, **{**SHAPE, "dtype": "float16", **shape})
        self.cupy, self.spec = cupy, spec
        self.host = PagedKV(spec)
        random = np.random.default_rng(5)
        self.host.buffer[:] = random.integers(0, 256, self.host.nbytes)
        self.far = PagedKV(spec, xp=cupy, arrays=self._arrays() if adopted else None)
        for mine, theirs in self.planes():
            theirs[...] = cupy.asarray(mine.view(theirs.dtype))
        cupy.cuda.get_current_stream().synchronize()
        self.rows = StagedRows(cupy, batch_blocks * spec.bytes_per_block)

    def _arrays(self):
        """Keys and values of each layer side by side, as some engines hold them."""
        shape = (self.spec.num_blocks, 2, *self.spec.k_shape[1:])
        both = [self.cupy.zeros(shape, self.host.dtype) for _ in range(self.spec.num_layers)]
        return [(one[:, 0], one[:, 1]) for one in both]

    def planes(self):
        for layer in range(self.spec.num_layers):
            yield self.host.k(layer), self.far.k(layer)
            yield self.host.v(layer), self.far.v(layer)

    def ids(self, *blocks):
        # There at once: where a wait is missing, a row's bytes shall be wrong, not its number.
        return self.cupy.asarray(np.array(blocks, np.int32), blocking=True)

    def expected(self, *blocks):
        rows = np.zeros((len(blocks), self.spec.bytes_per_block), np.uint8)
        reference.swap_out(self.host, np.array(blocks, np.int32), rows)
        return rows

    def target(self, count, *, pinned):
        shape = (count, self.spec.bytes_per_block)
        if not pinned:
            return np.zeros(shape, np.uint8)
        size = shape[0] * shape[1]
        return np.frombuffer(self.cupy.cuda.alloc_pinned_memory(size), np.uint8).reshape(shape)


def same(far, host):
    """Bit by bit: random bytes are sometimes NaN."""
    return far.get().tobytes() == np.ascontiguousarray(host).tobytes()


PINNED = pytest.mark.parametrize("pinned", [False, True])


@PINNED
@pytest.mark.parametrize("batch_blocks", [1, 2, 5, 100])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"layout": "HND", "dtype": "bfloat16"},
        {"v_head_dim": 80},
        {"adopted": True},
        {"dtype": "float8_e4m3", "k_scale": 1.0, "v_scale": 1.0},
    ],
    ids=["plain", "HND", "unequal", "adopted", "fp8"],
)
def test_bytes_are_those_of_the_reference(cupy, shape, batch_blocks, pinned):
    pair = Pair(cupy, batch_blocks=batch_blocks, **shape)
    blocks = (7, 2, 11, 3, 0)
    rows = pair.target(5, pinned=pinned)
    send(pair.far, pair.ids(*blocks), rows, pair.rows)
    assert np.array_equal(rows, pair.expected(*blocks))
    new = (1, 4, 5, 6, 8)
    receive(pair.far, pair.ids(*new), rows, pair.rows)
    reference.swap_in(pair.host, np.array(new, np.int32), rows.copy())
    for mine, theirs in pair.planes():
        assert same(theirs, mine)


def test_files_are_the_same(cupy, tmp_path):
    pair, attention = Pair(cupy), gpu.backend()
    blocks = np.array([7, 2, 11], np.int32)
    attention.swap_out(pair.far, cupy.asarray(blocks), tmp_path / "far")
    reference.swap_out(pair.host, blocks, tmp_path / "host")
    assert (tmp_path / "far").read_bytes() == (tmp_path / "host").read_bytes()
    attention.swap_in(pair.far, pair.ids(0, 1, 3), tmp_path / "host")
    assert same(pair.far.v(2)[1], pair.host.v(2)[2])


def test_no_blocks_are_no_copies(cupy):
    pair = Pair(cupy)
    none = np.zeros((0, pair.spec.bytes_per_block), np.uint8)
    send(pair.far, pair.ids(), none, pair.rows)
    receive(pair.far, pair.ids(), none, pair.rows)


def test_staging_stays_small(cupy):
    pair = Pair(cupy, batch_blocks=2)
    rows = np.zeros((BLOCKS, pair.spec.bytes_per_block), np.uint8)
    for _ in range(3):
        send(pair.far, pair.ids(*range(BLOCKS)), rows, pair.rows)
        receive(pair.far, pair.ids(*range(BLOCKS)), rows, pair.rows)
    staged = sum(one.size for one in cupy.world.pinned)
    assert staged == 2 * 2 * pair.spec.bytes_per_block


def test_a_graph_takes_no_swap(cupy):
    attention, pair = gpu.backend(), Pair(cupy)
    rows, ids = pair.target(1, pinned=False), pair.ids(0)
    attention.memory(pair.far)
    with capturing(cupy.cuda):
        for swap in (attention.swap_out, attention.swap_in):
            with pytest.raises(StateError, match="swap outside"):
                swap(pair.far, ids, rows)


# --- order ----------------------------------------------------------------------------------------


def out_after_a_write(pair, pinned):
    """What the caller's stream has not done yet goes out, too."""
    rows = pair.target(3, pinned=pinned)
    pair.far.k(1)[7] = 9
    pair.rows.read(pair.far, pair.ids(7, 2, 11), rows)
    pair.host.k(1)[7] = 9
    return np.array_equal(rows, pair.expected(7, 2, 11))


def in_before_a_read(pair, pinned):
    """What the caller's stream does later sees what came in."""
    rows = pair.target(5, pinned=pinned)
    rows[...] = pair.expected(7, 2, 11, 3, 0)
    pair.rows.write(pair.far, pair.ids(1, 4, 5, 6, 8), rows)
    return all(
        same(theirs[[1, 4, 5, 6, 8]], mine[[7, 2, 11, 3, 0]]) for mine, theirs in pair.planes()
    )


def in_after_a_read(pair, pinned):
    """What the caller's stream still reads is not overwritten before."""
    rows = pair.target(1, pinned=pinned)
    rows[...] = pair.expected(7)
    kept = pair.cupy.zeros(pair.spec.k_shape[1:], pair.far.dtype)
    kept[...] = pair.far.k(1)[4]
    pair.rows.write(pair.far, pair.ids(4), rows)
    return same(kept, pair.host.k(1)[4])


def in_from_an_array_that_changes(pair, pinned):
    """The source is the caller's again when the call returns."""
    rows = pair.target(5, pinned=pinned)
    rows[...] = pair.expected(7, 2, 11, 3, 0)
    pair.rows.write(pair.far, pair.ids(1, 4, 5, 6, 8), rows)
    rows[...] = 0xEE
    return same(pair.far.v(2)[[1, 4, 5, 6, 8]], pair.host.v(2)[[7, 2, 11, 3, 0]])


def in_twice(pair, pinned):
    """The second call waits for the stages of the first."""
    for blocks, new in (((7, 2, 11), (1, 4, 5)), ((3, 0, 9), (6, 8, 10))):
        rows = pair.target(3, pinned=pinned)
        rows[...] = pair.expected(*blocks)
        pair.rows.write(pair.far, pair.ids(*new), rows)
    return same(pair.far.k(0)[[1, 4, 5, 6, 8, 10]], pair.host.k(0)[[7, 2, 11, 3, 0, 9]])


def in_and_out(pair, pinned):
    """A call out behind one in, through the same stages and from the same blocks."""
    rows = pair.target(3, pinned=pinned)
    rows[...] = pair.expected(7, 2, 11)
    pair.rows.write(pair.far, pair.ids(1, 4, 5), rows)
    found = pair.target(3, pinned=pinned)
    pair.rows.read(pair.far, pair.ids(5, 1, 3), found)
    return np.array_equal(found, pair.expected(11, 7, 3))


ORDERS = [
    out_after_a_write,
    in_before_a_read,
    in_after_a_read,
    in_from_an_array_that_changes,
    in_twice,
    in_and_out,
]


@PINNED
@pytest.mark.parametrize("order", ORDERS)
def test_streams_wait_for_each_other(cupy, order, pinned):
    with cupy.cuda.Stream(non_blocking=True):
        assert order(Pair(cupy), pinned)


@pytest.mark.parametrize("method", ["wait_event", "Event.synchronize"])
def test_a_missing_wait_is_seen(cupy, monkeypatch, method):
    """The streams are late enough: without its waits, the swap is wrong."""
    kind, _, name = method.rpartition(".")
    monkeypatch.setattr(getattr(fake_cuda, kind or "Stream"), name, lambda *_: None)
    right = [order(Pair(cupy), pinned) for order in ORDERS for pinned in (False, True)]
    assert not all(right)

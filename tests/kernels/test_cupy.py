"""The launcher over CuPy, its streams and graphs, with kernels that run: on the emulator."""

import numpy as np
import pytest

from emulator.launcher import EmulatorLauncher
from octavo.attention import KVSpec, PagedKV, gpu, kernels, reference
from support.fake_cupy import install, ndarray


@pytest.fixture
def cupy(monkeypatch):
    """A CuPy whose kernels the emulator runs, when their stream comes to them."""
    emulator, named = EmulatorLauncher(), {one.kernel.name: one.kernel for one in kernels.shipped()}

    def run(name, grid, args):
        values = [arg.host if isinstance(arg, ndarray) else arg for arg in args]
        values = [None if isinstance(value, np.uint64) else value for value in values]
        emulator.launch(named[name], grid, values)

    cupy = install(monkeypatch)
    cupy.world.run = run
    return cupy


def test_a_graph_is_replayed_with_other_lengths(cupy):
    spec = KVSpec(1, 64, 16, 2, 64, dtype="float16")
    kv, twin, random = PagedKV(spec, xp=cupy), PagedKV(spec), np.random.default_rng(0)
    q, k = cupy.zeros((3, 8, 64), np.float16), cupy.zeros((3, 2, 64), np.float16)
    out, again = cupy.zeros(q.shape, q.dtype), cupy.zeros(q.shape, q.dtype)
    tables, lens = cupy.zeros((3, 8), np.int32), cupy.zeros(3, np.int32)
    slots, starts = cupy.full(3, -1), cupy.arange(4, dtype=np.int32)
    attention = gpu.backend()
    attention.prepare(kv, dtype="float16", num_q_heads=8, max_queries=3, max_blocks=8)
    attention.memory(kv)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        stream.begin_capture()
        attention.append(kv, 0, k, k, slots)
        attention.decode(kv, 0, q, tables, lens, out=out)
        attention.prefill(kv, 0, q, starts, tables, lens, out=again)
        graph = stream.end_capture()
    for step in range(3):
        given = random.permutation(64)[:24].reshape(3, 8).astype(np.int32)
        length = np.array([1, 16 * step, 0], np.int32)
        new = [
            -1 if n == 0 else given[row, (n - 1) // 16] * 16 + (n - 1) % 16
            for row, n in enumerate(length.tolist())
        ]
        values = random.standard_normal((3, 8, 64)).astype(np.float16)
        for target, value in (
            (q, values),
            (k, values[:, :2]),
            (tables, given),
            (lens, length),
            (slots, np.array(new)),
        ):
            target.set(np.ascontiguousarray(value), stream)
        graph.launch(stream)
        reference.append(twin, 0, values[:, :2], values[:, :2], np.array(new))
        expected = reference.decode(twin, 0, values, given, length)
        stream.synchronize()
        for found in (out, again):
            np.testing.assert_allclose(found.get().astype(float), expected, atol=4e-3)

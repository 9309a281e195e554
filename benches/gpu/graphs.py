"""A step captured in a CUDA graph once, and replayed with other lengths, blocks and queries."""

from __future__ import annotations

import numpy as np

import machine as machines
import oracle
import pages
from octavo.attention import PagedKV, reference
from octavo.errors import StateError
from rows import Row

_SHAPE = {"num_layers": 1, "block_size": 16, "num_kv_heads": 8, "head_dim": 128}
_ROWS, _BLOCKS, _GROUP = 8, 128, 4


class Step:
    """Arrays that stay, and what a graph does with them: append, decode, prefill."""

    def __init__(self, machine, kv, half):
        xp, dtype = machine.xp, pages.normal(np.random.default_rng(0), (1,), half).dtype
        heads = 8 * _GROUP
        self.kv = kv
        self.k, self.v = (xp.zeros((_ROWS, 8, 128), dtype=dtype) for _ in range(2))
        self.q, self.out, self.again = (
            xp.zeros((_ROWS, heads, 128), dtype=dtype) for _ in range(3)
        )
        self.slots = xp.full(_ROWS, -1, dtype=np.int64)
        self.tables = xp.zeros((_ROWS, _BLOCKS), dtype=np.int32)
        self.lens = xp.zeros(_ROWS, dtype=np.int32)
        self.starts = xp.arange(_ROWS + 1, dtype=np.int32)

    def __call__(self, attention):
        attention.append(self.kv, 0, self.k, self.v, self.slots)
        attention.decode(self.kv, 0, self.q, self.tables, self.lens, out=self.out)
        attention.prefill(self.kv, 0, self.q, self.starts, self.tables, self.lens, out=self.again)


def graphs(machine):
    if not machine.is_card:
        yield Row("graphs", note="not captured: a dry run")
        return
    xp, half = machine.xp, machine.half
    spec = pages.spec_of(half, num_blocks=_ROWS * _BLOCKS, **_SHAPE)
    kv, twin = PagedKV(spec, xp=xp), PagedKV(spec)
    step, random = Step(machine, kv, half), np.random.default_rng(11)
    stream = xp.cuda.Stream(non_blocking=True)
    from octavo.attention import gpu  # noqa: PLC0415 - a launcher that has compiled nothing

    with stream:
        cold = gpu.backend()
        cold.memory(kv)
        stream.begin_capture()
        try:
            step(cold)
            told = "was captured"
        except StateError as error:
            told = str(error)
        stream.end_capture()
        if "call prepare()" not in told:
            raise oracle.MismatchError(f"a kernel that was not prepared: {told}")
        attention = gpu.backend()
        attention.prepare(
            kv, dtype=half, num_q_heads=8 * _GROUP, max_queries=_ROWS, max_blocks=_BLOCKS
        )
        attention.memory(kv)
        stream.synchronize()
        stream.begin_capture()
        step(attention)
        graph = stream.end_capture()
        for lens in ([0] * 8, [1, 16, 17, 300, 0, 2048, 5, 31], [2048] * 8):
            _replay(machine, graph, stream, (step, twin), lens, random)
    yield Row("captured once, replayed with three sets of lengths", note="answers of the reference")


def _replay(machine, graph, stream, pair, lens, random):
    step, twin = pair
    xp, half = machine.xp, machine.half
    tables, lens = pages.tables_for(random, lens, twin.spec)
    # All rows but their last token are there before the step.
    before = np.maximum(lens - 1, 0)
    slots = reference.slots_from_tables(tables, before, 16)
    k, v = (pages.normal(random, (len(slots) + _ROWS, 8, 128), half) for _ in range(2))
    rest = len(slots)
    last = np.array(
        [
            -1 if n == 0 else tables[row, (n - 1) // 16] * 16 + (n - 1) % 16
            for row, n in enumerate(lens.tolist())
        ],
        np.int64,
    )
    for at, places in ((slice(0, rest), slots), (slice(rest, None), last)):
        reference.append(twin, 0, k[at], v[at], places)
    machine.make().append(step.kv, 0, xp.asarray(k[:rest]), xp.asarray(v[:rest]), xp.asarray(slots))
    q = pages.normal(random, step.q.shape, half)
    wide = np.full((_ROWS, _BLOCKS), pages.UNREAD, np.int32)
    wide[:, : tables.shape[1]] = tables
    for target, values in (
        (step.k, k[rest:]),
        (step.v, v[rest:]),
        (step.q, q),
        (step.slots, last),
        (step.tables, wide),
        (step.lens, lens),
    ):
        target.set(values)
    graph.launch(stream)
    stream.synchronize()
    expected = oracle.decoded(twin, 0, q, wide, lens)
    logs = expected[1]
    told = {"dtype": half, "largest": oracle.largest_value(twin, 0, wide, lens), "on_tensor": True}
    for name, found in (("decode", step.out), ("prefill", step.again)):
        oracle.check_attention(f"{name} in a graph", (machine.host(found), logs), expected, **told)


if __name__ == "__main__":
    machines.run(graphs)

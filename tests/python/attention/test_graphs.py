"""What may be captured in a graph, and what is refused there."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.attention import kernels
from octavo.attention.kernel_backend import KernelBackend
from octavo.attention.splits import plan_splits
from octavo.errors import RequestError, StateError
from support.launches import DTYPES, captured, memory, tables_of
from support.recording import Recorder


def test_a_workspace_that_is_missing_names_its_bytes():
    attention = KernelBackend(Recorder(resident=264))
    kv, q = memory(), np.zeros((1, 2, 64), np.float16)
    tables = tables_of(1, 256)
    attention.memory(kv)
    pair = ("float16", "float16")
    for kernel in (
        kernels.decode_cores(*pair, 64, 64, 1),
        kernels.merge_states("float16", "float32"),
    ):
        attention.launcher.prepare(kernel)
    size = 4 * 2 * plan_splits(2, 4096, 264) * (64 + 1)
    with pytest.raises(StateError, match=rf"{size} bytes of workspace are missing: call prepare"):
        captured(attention, lambda: attention.decode(kv, 0, q, *tables))
    attention.decode(kv, 0, q, *tables)
    captured(attention, lambda: attention.decode(kv, 0, q, *tables))


@given(st.data())
def test_after_prepare_nothing_is_missing(data):
    dtype, stored = data.draw(st.sampled_from(kernels.PAIRS))
    group = data.draw(st.sampled_from([1, 3, 4, 8, 17]))
    most, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 300))
    split = data.draw(st.none() | st.sampled_from([16, 256, 4096]))
    on = data.draw(st.sampled_from(["auto", "cores", "tensor"]))
    resident = data.draw(st.sampled_from([1, 7, 132, 528]))
    attention = KernelBackend(Recorder(resident), split_tokens=split, decode_on=on)
    kv = memory(stored)
    attention.prepare(kv, dtype=dtype, num_q_heads=2 * group, max_queries=most, max_blocks=width)
    queries, blocks = data.draw(st.integers(1, most)), data.draw(st.integers(1, width))
    window = data.draw(st.none() | st.integers(1, 5000))
    q = np.zeros((queries, 2 * group, 64), DTYPES[dtype])
    out, k = np.zeros_like(q), q[:, :2]
    # As few rows as may be have the fewest tiles, and are split the furthest.
    rows = data.draw(st.integers(1, queries))
    starts = np.linspace(0, queries, rows + 1).astype(np.int32)
    tables, chunks = tables_of(queries, blocks, 1), tables_of(rows, blocks, 1)

    def step():
        attention.append(kv, 0, k, k, np.arange(queries))
        attention.decode(kv, 0, q, *tables, window=window, out=out)
        attention.prefill(kv, 0, q, starts, *chunks, window=window, out=out)

    captured(attention, step)


def test_a_fixed_size_of_parts_takes_room_for_as_many_decodes_as_there_may_be():
    attention = KernelBackend(Recorder(resident=1), split_tokens=16)
    sizes = {"dtype": "float16", "num_q_heads": 2, "max_queries": 50, "max_blocks": 800}
    kv = memory()
    attention.prepare(kv, **sizes, max_decodes=3)
    q, out = np.zeros((4, 2, 64), np.float16), np.zeros((4, 2, 64), np.float16)
    captured(attention, lambda: attention.decode(kv, 0, q[:3], *tables_of(3, 800), out=out[:3]))
    with pytest.raises(StateError, match="workspace"):
        captured(attention, lambda: attention.decode(kv, 0, q, *tables_of(4, 800), out=out))


def apart(array):
    """The same with a gap after each element of the last axis."""
    return np.repeat(array, 2, axis=-1)[..., ::2]


@pytest.mark.parametrize(
    "apart_from", ["q", "k", "v", "slots", "starts", "tables", "lens", "copies", "parts", "logs"]
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_graph_takes_nothing_that_is_copied(dtype, apart_from):
    """The copy is freed once the call returns; each replay would write to where it lay."""
    attention, kv = KernelBackend(Recorder()), memory(dtype)
    attention.prepare(kv, dtype=dtype, num_q_heads=2, max_queries=3, max_blocks=4)
    for kernel in (kernels.copy_blocks(), kernels.merge_states(dtype, dtype)):
        attention.launcher.prepare(kernel)
    q = np.zeros((3, 2, 64), DTYPES[dtype])
    tables, lens = tables_of(3, 4)
    given_ = {
        "q": q, "k": q, "v": q, "slots": np.arange(3), "starts": np.arange(4, dtype=np.int32),
        "tables": tables, "lens": lens, "copies": np.zeros((1, 3), np.int32),
        "parts": np.zeros((2, 3, 2, 64), DTYPES[dtype]), "logs": np.zeros((2, 3, 2), np.float32),
    }  # fmt: skip

    def step(*, q, k, v, slots, starts, tables, lens, copies, parts, logs):
        attention.append(kv, 0, k, v, slots)
        attention.decode(kv, 0, q, tables, lens, out=np.zeros_like(q))
        attention.prefill(kv, 0, q, starts, tables, lens, out=np.zeros_like(q))
        attention.copy_blocks(kv, copies)
        attention.merge_states(parts, logs)

    captured(attention, lambda: step(**given_))
    given_[apart_from] = apart(given_[apart_from])
    with pytest.raises(StateError, match=r"a graph is captured and .* would be copied"):
        captured(attention, lambda: step(**given_))
    step(**given_)


def test_a_graph_takes_no_memory_that_is_new():
    attention = KernelBackend(Recorder())
    sizes = {"dtype": "float16", "num_q_heads": 2, "max_queries": 1, "max_blocks": 4}
    attention.prepare(memory(), **sizes)
    other, q = memory(), np.zeros((1, 2, 64), np.float16)
    with pytest.raises(StateError, match="nothing is known of this memory yet: call prepare"):
        captured(attention, lambda: attention.decode(other, 0, q, *tables_of(1, 4), out=q.copy()))
    attention.prepare(other, **sizes)
    captured(attention, lambda: attention.decode(other, 0, q, *tables_of(1, 4), out=q.copy()))


def test_a_graph_takes_nothing_that_waits_for_the_device():
    attention, kv = KernelBackend(Recorder()), memory()
    tables, none = tables_of(1, 4), np.zeros(1, np.int32)
    attention.memory(kv)
    for call in (
        lambda: attention.gather(kv, 0, *tables),
        lambda: attention.poison(kv, *tables),
        lambda: attention.tables_to_csr(*tables, 16),
        lambda: attention.slots_from_tables(*tables, 16),
        lambda: attention.csr_to_tables(none, none[:0], none[:0], 16),
    ):
        with pytest.raises(StateError, match=r"a graph is captured, and .* outside"):
            captured(attention, call)
        call()


def test_what_a_graph_was_given_stays_when_the_workspace_grows():
    """Its replays write there: it must not become another array's."""
    attention, kv = KernelBackend(Recorder(resident=264)), memory()
    attention.prepare(kv, dtype="float16", num_q_heads=2, max_queries=1, max_blocks=64)
    q = np.zeros((1, 2, 64), np.float16)
    captured(attention, lambda: attention.decode(kv, 0, q, *tables_of(1, 64), out=q.copy()))
    part = attention.launcher.launches[0].args.part_out
    given_ = weakref.ref(part.base)
    attention.launcher.launches.clear()
    del part
    attention.decode(kv, 0, q, *tables_of(1, 4096))
    assert attention.launcher.launches[0].args.part_out.base is not given_()
    gc.collect()
    assert given_() is not None


def test_prepare_of_what_no_kernel_takes_is_named():
    attention = KernelBackend(Recorder())
    sizes = {"num_q_heads": 4, "max_queries": 4, "max_blocks": 4}
    with pytest.raises(RequestError, match="dtype: no kernel takes float64 over float16"):
        attention.prepare(memory(), dtype="float64", **sizes)

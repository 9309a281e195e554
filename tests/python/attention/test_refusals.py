"""What the back end of kernels refuses, by name, and where its results go."""

import gc
import itertools
import weakref
from functools import partial

import numpy as np
import pytest

from octavo.attention import KVSpec, PagedKV
from octavo.attention.arrays import address_of
from octavo.attention.kernel_backend import KernelBackend
from octavo.errors import ConfigError, RequestError, StateError
from support.fake_cupy import install
from support.launches import captured, decoded, memory, tables_of
from support.recording import Recorder

# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("split_tokens", 0),
        ("split_tokens", 8),
        ("split_tokens", 100),
        ("split_tokens", -16),
        ("split_tokens", 256.0),
        ("split_tokens", True),
        ("decode_on", "gpu"),
        ("decode_on", None),
    ],
)
def test_a_setting_outside_its_range_is_named(option, value):
    with pytest.raises(ConfigError) as caught:
        KernelBackend(Recorder(), **{option: value})
    assert (caught.value.field, caught.value.value) == (option, value)


def misaligned(offset=0, token=2 * 64):
    """A memory whose keys begin, or whose tokens follow each other, between multiples of 16."""
    spec = KVSpec(1, 8, 16, 2, 64, dtype="float16")
    flat = np.zeros(8 * 16 * token + 64, np.float16)
    first = (-address_of(flat) % 16) // 2 + offset
    shape, strides = spec.k_shape, (2 * 16 * token, 2 * token, 2 * 64, 2)
    keys = np.lib.stride_tricks.as_strided(flat[first:], shape, strides)
    return PagedKV(spec, arrays=[(keys, np.zeros(shape, np.float16))])


def backwards():
    spec = KVSpec(1, 8, 16, 2, 64, dtype="float16")
    keys, values = (np.zeros((8, 16, 2, 128), np.float16)[..., ::2] for _ in range(2))
    return PagedKV(spec, arrays=[(keys, values)])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: memory("float64"), "holds float64; kernels take float32, float16, bfloat16"),
        (lambda: memory(head_dim=72), "head_dim is 72; kernels take 64, 80, 96, 128, 192, 256"),
        (lambda: memory(v_head_dim=8), "v_head_dim is 8; kernels take"),
        (lambda: misaligned(offset=4), "keys of layer 0: rows are not aligned to 16 bytes"),
        (lambda: misaligned(token=2 * 64 + 4), "keys of layer 0: rows are not aligned"),
        (backwards, "keys of layer 0: a head's elements do not lie side by side"),
    ],
)
def test_memory_that_kernels_cannot_read_is_named(make, words, tmp_path):
    attention, kv = KernelBackend(Recorder()), make()
    tables, lens = tables_of(1, 2)
    q = np.zeros((1, 2, kv.spec.head_dim), np.float16)
    ids = np.zeros(1, np.int32)
    for call in (
        lambda: attention.decode(kv, 0, q, tables, lens),
        lambda: attention.prefill(kv, 0, q, np.array([0, 1], np.int32), tables, lens),
        lambda: attention.append(kv, 0, q, q, np.zeros(1, np.int64)),
        lambda: attention.gather(kv, 0, tables, lens),
        lambda: attention.copy_blocks(kv, np.zeros((1, 3), np.int32)),
        lambda: attention.swap_out(kv, ids, tmp_path / "kv"),
        lambda: attention.poison_all(kv),
        lambda: attention.prepare(kv, dtype="float16", num_q_heads=2, max_queries=1, max_blocks=1),
    ):
        with pytest.raises(RequestError) as caught:
            call()
        assert caught.value.argument == "kv"
        assert words in caught.value.message
    assert not attention.launcher.launches


def test_a_back_end_keeps_no_memory_alive():
    """A pool on a card is most of the card."""
    attention, kv = KernelBackend(Recorder()), memory()
    decoded(attention, kv)
    attention.poison_all(kv)
    attention.launcher.launches.clear()
    gone = weakref.ref(kv)
    del kv
    gc.collect()
    assert gone() is None


def test_memory_of_another_module_is_named(monkeypatch):
    kv = PagedKV(KVSpec(1, 8, 16, 2, 64), xp=install(monkeypatch))
    with pytest.raises(RequestError, match="kv: holds arrays of cupy, kernels take numpy's"):
        KernelBackend(Recorder()).poison_all(kv)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("q", {"q": np.zeros((2, 2, 64))}),
        ("q", {"q": np.zeros((2, 2, 64), np.float32)}),
        ("q", {"q": np.zeros((2, 3, 64), np.float16)}),
        ("layer", {"layer": 2}),
        ("window", {"window": 0}),
        ("scale", {"scale": np.inf}),
        ("out", {"out": np.zeros((2, 2, 64), np.float32)}),
        ("out", {"out": np.zeros((2, 2, 80), np.float16)}),
        ("out", {"out": np.zeros((2, 2, 128), np.float16)[..., ::2]}),
        ("out", {"out": np.zeros(2 * 2 * 64 + 1, np.float16)[1:].reshape(2, 2, 64)}),
        ("block_tables", {"block_tables": np.zeros((2, 4), np.int64)}),
        ("seq_lens", {"seq_lens": np.zeros(3, np.int32)}),
    ],
)
def test_bad_arguments_are_named_before_anything_runs(name, change):
    attention = KernelBackend(Recorder())
    tables, lens = tables_of(2, 4)
    q = np.zeros((2, 2, 64), np.float16)
    good = {"layer": 0, "q": q, "block_tables": tables, "seq_lens": lens}
    starts = np.array([0, 1, 2], np.int32)
    for call, more in ((attention.decode, {}), (attention.prefill, {"query_start": starts})):
        with pytest.raises(RequestError) as caught:
            call(memory(), **{**good, **more, **change})
        assert caught.value.argument == name
    assert not attention.launcher.launches


def test_values_are_looked_at_with_debug_only():
    kv, q = memory(), np.zeros((1, 2, 64), np.float16)
    k, slots = q, np.array([10**6])
    tables, lens = np.full((1, 2), 99, np.int32), np.array([33], np.int32)
    for call in (
        lambda attention: attention.decode(kv, 0, q, tables, lens),
        lambda attention: attention.append(kv, 0, k, k, slots),
        lambda attention: attention.copy_blocks(kv, np.array([[0, 0, 1]], np.int32)),
        lambda attention: attention.prefill(kv, 0, q, np.array([0, 2], np.int32), tables, lens),
    ):
        with pytest.raises(RequestError):
            call(KernelBackend(Recorder(), debug=True))
        trusting = KernelBackend(Recorder())
        call(trusting)
        assert trusting.launcher.launches


def test_states_of_float64_are_refused():
    attention = KernelBackend(Recorder())
    out, lse = np.zeros((2, 1, 2, 8), np.float32), np.zeros((2, 1, 2))
    for pair in itertools.product((out.astype(np.float64),), (lse, lse.astype(np.float32))):
        with pytest.raises(RequestError, match="kernels take no float64"):
            attention.merge_states(*pair)
    with pytest.raises(RequestError, match="kernels take no float64"):
        attention.merge_states(out, lse)


# --- results in arrays that stay ----------------------------------------------------------------


def test_results_go_where_they_are_wanted():
    attention = KernelBackend(Recorder(), split_tokens=4096)
    kv, q, tables = memory(), np.zeros((2, 4, 64), np.float16), tables_of(2, 4)
    starts = np.arange(3, dtype=np.int32)
    for call in (attention.decode, partial(attention.prefill, query_start=starts)):
        out, lse = np.zeros((2, 4, 64), np.float16), np.zeros((2, 4), np.float32)
        rest = {"block_tables": tables[0], "seq_lens": tables[1], "out": out, "lse": lse}
        found = call(kv, 0, q, return_lse=True, **rest)
        assert found[0] is out
        assert found[1] is lse
        assert call(kv, 0, q, **rest) is out
    into = np.zeros((4, 64), np.float16), np.zeros(4, np.float32)
    parts = np.zeros((2, 4, 64), np.float16), np.zeros((2, 4), np.float32)
    merged = attention.merge_states(*parts, into=into)
    assert merged[0] is into[0]
    assert merged[1] is into[1]


def test_a_place_for_results_that_is_none_is_named():
    attention = KernelBackend(Recorder())
    kv, q, tables = memory(), np.zeros((2, 4, 64), np.float16), tables_of(2, 4)
    decode = partial(attention.decode, kv, 0, q, *tables, return_lse=True)
    bad = [
        ("lse", np.zeros((2, 4), np.float16)),
        ("lse", np.zeros((2, 3), np.float32)),
        ("lse", np.zeros((2, 8), np.float32)[:, ::2]),
        ("out", np.zeros((2, 4, 64), np.float32)),
    ]
    for name, place in bad:
        with pytest.raises(RequestError) as error:
            decode(**{name: place})
        assert error.value.argument == name
    parts = np.zeros((2, 4, 64), np.float16), np.zeros((2, 4), np.float32)
    with pytest.raises(RequestError, match="into"):
        attention.merge_states(*parts, into=(parts[0], parts[1][0]))


def test_numbers_that_kernels_cannot_take_are_named():
    attention = KernelBackend(Recorder())
    kv, q, tables = memory(), np.zeros((2, 4, 64), np.float16), tables_of(2, 4)
    with pytest.raises(RequestError, match="scale: 1e\\+39 is beyond float32"):
        attention.decode(kv, 0, q, *tables, scale=1e39)
    sizes = {"dtype": "float16", "max_queries": 1, "max_blocks": 1}
    for heads in (3, 0, -2, 2.0):
        with pytest.raises(RequestError, match="num_q_heads"):
            attention.prepare(kv, num_q_heads=heads, **sizes)


def test_debug_and_a_graph_exclude_each_other():
    attention = KernelBackend(Recorder(), debug=True)
    kv, q, tables = memory(), np.zeros((2, 4, 64), np.float16), tables_of(2, 4)
    attention.decode(kv, 0, q, *tables, out=np.zeros_like(q))
    with pytest.raises(StateError, match="debug"):
        captured(attention, lambda: attention.decode(kv, 0, q, *tables, out=np.zeros_like(q)))

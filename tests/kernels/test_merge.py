"""States of parts of a context, merged; and how a context is split."""

import itertools

import numpy as np
import pytest

from emulator.launcher import EmulatorLauncher
from octavo.attention import kernels, reference
from octavo.attention.dtypes import FP8
from world import DTYPES, LOG_SUM, KernelBackend, check_decode, check_prefill, filled

PAIRS = [
    ("float32", "float32"),
    ("float16", "float16"),
    ("bfloat16", FP8),
    ("bfloat16", "bfloat16"),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_merged_states_are_those_of_the_reference(backend, dtype, parts):
    """Some parts are empty, and what their output holds is not looked at; some rows have none."""
    random = np.random.default_rng(parts)
    out = random.standard_normal((parts, 5, 4, 72)).astype(DTYPES[dtype])
    lse = (random.standard_normal((parts, 5, 4)) * 30).astype(np.float32)
    empty = random.random(lse.shape) < 0.4
    empty[:, 0] = True
    out[empty], lse[empty] = np.nan, -np.inf
    found, logs = backend.merge_states(out, lse)
    wanted, expected = reference.merge_states(out.astype(np.float64), lse.astype(np.float64))
    np.testing.assert_allclose(
        found.astype(np.float64), wanted, rtol=2.0**-8 if dtype != "float32" else 1e-6, atol=1e-6
    )
    np.testing.assert_allclose(logs, expected, rtol=1e-6, atol=LOG_SUM)
    assert not found[0].any()
    assert np.isneginf(logs[0]).all()


def test_a_shared_prefix_and_suffixes_merge_to_attention_over_both(backend):
    memory = filled([48, 77], ("float32", "float32"), 64, 16, "NHD")
    q = memory.queries(2, 4, np.float32)
    tables = memory.block_tables
    whole, _ = backend.decode(memory.kv, 1, q, tables, memory.seq_lens, return_lse=True)
    first = backend.decode(memory.kv, 1, q, tables, np.array([32, 32], np.int32), return_lse=True)
    rest = np.ascontiguousarray(tables[:, 2:])
    second = backend.decode(memory.kv, 1, q, rest, memory.seq_lens - 32, return_lse=True)
    merged, _ = backend.merge_states(*(np.stack(pair) for pair in zip(first, second, strict=True)))
    np.testing.assert_allclose(merged, whole, atol=2e-6)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("group", [1, 8])
def test_a_split_context_gives_what_a_whole_one_gives(pair, group):
    """From one part to more parts than some rows have tokens, and of a fixed size."""
    memory = filled([1, 0, 128, 129, 700], pair, 64, 16, "NHD")
    tensor = pair[0] != "float32" and (pair[1] == FP8 or group > 4)
    launcher = EmulatorLauncher()
    for resident, split, window in itertools.product([1, 80, 10_000], [None, 16, 256], [None, 200]):
        launcher.resident = resident
        backend = KernelBackend(launcher, split_tokens=split)
        check_decode(backend, memory, pair[0], group, tensor=tensor, window=window)
        if split is None:
            counts = [1, 0, 3, 20, 7]
            exact = pair[0] == "float32"
            check_prefill(backend, memory, pair[0], group, counts, tensor=not exact, window=window)


@pytest.mark.parametrize("group", [2, 8])
def test_a_fixed_split_makes_a_row_independent_of_its_batch(launcher, group):
    """To the last bit, whoever else is there and however wide the tables are."""
    memory = filled([700, 3, 290, 513], ("float16", "float16"), 64, 16, "NHD")
    backend = KernelBackend(launcher, split_tokens=128)
    q = memory.queries(4, 2 * group, np.float16)
    tables, lens = memory.block_tables, memory.seq_lens
    together = backend.decode(memory.kv, 1, q, tables, lens)
    for row in range(4):
        count = -(-int(lens[row]) // 16)
        one = slice(row, row + 1)
        alone = backend.decode(memory.kv, 1, q[one], tables[one, :count].copy(), lens[one])
        assert alone.tobytes() == together[one].tobytes()


def test_every_shipped_kernel_declares_its_parameters_as_they_are(launcher):
    """Compiling compares them; a machine without a card meets every instantiation."""
    shipped = [one.kernel for one in kernels.shipped()]
    assert len(set(shipped)) == len(shipped)
    launcher.prepare_all(shipped)

"""A tour: every kernel once or twice on small worlds, for what watches threads while they run.

    python tour.py        runs it in this process, sanitized if the environment says so

The answers are compared, so that a sanitized build that computes something else is found as well.
"""

import numpy as np

from emulator.launcher import EmulatorLauncher
from octavo.attention.dtypes import FP8
from world import DTYPES, KernelBackend, check_decode, check_prefill, filled

# (model's dtype, memory's), keys, values, query heads of a KV head, block size, layout.
WORLDS = [
    (("float32", "float32"), 64, 64, 3, 16, "NHD"),
    (("float16", "float16"), 128, 128, 4, 16, "HND"),
    (("bfloat16", "bfloat16"), 80, 96, 1, 3, "NHD"),
    (("float32", FP8), 256, 64, 2, 64, "HND"),
    (("float16", "float16"), 256, 256, 8, 1, "NHD"),
    (("bfloat16", "bfloat16"), 128, 128, 17, 16, "HND"),
    (("float16", FP8), 80, 80, 5, 24, "NHD"),
    (("bfloat16", FP8), 192, 128, 2, 256, "HND"),
]


def attend(launcher, world):
    """Decode and prefill; split, windowed, with an empty row."""
    pair, dim, v_dim, group, size, layout = world
    backend = KernelBackend(launcher, split_tokens=64)
    memory = filled([0, 1, size, size + 1, 150], pair, dim, size, layout, v_head_dim=v_dim)
    tensor = pair[0] != "float32"
    made = []
    for window in (None, 70):
        cores = not tensor or (group <= 4 and pair[1] != FP8)
        made += check_decode(backend, memory, pair[0], group, tensor=not cores, window=window)
    counts = [0, 1, min(size, 9), 2, 70]
    made += check_prefill(backend, memory, pair[0], group, counts, tensor=tensor)
    return made


def move(launcher, world):
    """Everything that only moves elements."""
    pair, dim, v_dim, _, size, layout = world
    backend = KernelBackend(launcher)
    memory = filled([0, 1, size, size + 1, 70], pair, dim, size, layout, v_head_dim=v_dim)
    kv, tables, lens = memory.kv, memory.block_tables, memory.seq_lens
    slots = backend.slots_from_tables(tables, lens, size)
    k, v = backend.gather(kv, 1, tables, lens)
    backend.append(kv, 0, k.astype(DTYPES[pair[0]]), v.astype(DTYPES[pair[0]]), slots)
    backend.copy_blocks(kv, np.array([[tables[4, 0], tables[3, 0], size]], np.int32))
    backend.poison(kv, tables[:4], lens[:4])
    csr = backend.tables_to_csr(tables, lens, size)
    back = backend.csr_to_tables(*csr, size)
    parts = np.stack([k, k]).astype(np.float32)
    merged = backend.merge_states(parts, np.zeros(parts.shape[:-1], np.float32))
    return [slots, k, v, *csr, *back, *merged, np.frombuffer(memory.bytes(), np.uint8)]


def tour(launcher):
    """Every world's results, in order."""
    return [made for world in WORLDS for made in (*attend(launcher, world), *move(launcher, world))]


if __name__ == "__main__":
    tour(EmulatorLauncher(resident=24))

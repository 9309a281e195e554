"""Every bad argument is named, and nothing was written."""

import numpy as np
import pytest

from octavo.attention import KVSpec, PagedKV, reference
from octavo.errors import RequestError

BLOCKS, SIZE, LAYERS = 6, 4, 2


def array(dtype, values):
    return np.array(values, dtype)


def floats(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


I32, I64 = np.int32, np.int64
TABLES, LENS = array(I32, [[3, 5], [2, 99]]), array(I32, [7, 4])
K, V, SLOTS = floats(3, 2, 8), floats(3, 2, 6), array(I64, [0, 9, -1])
Q = floats(2, 4, 8)
STARTS = array(I32, [0, 2, 3])

GOOD = {
    "append": {"layer": 1, "k": K, "v": V, "slot_mapping": SLOTS},
    "gather": {"layer": 0, "block_tables": TABLES, "seq_lens": LENS},
    "decode": {"layer": 0, "q": Q, "block_tables": TABLES, "seq_lens": LENS},
    "prefill": {
        "layer": 0,
        "q": floats(3, 4, 8),
        "query_start": STARTS,
        "block_tables": TABLES,
        "seq_lens": LENS,
    },
    "copy_blocks": {"copies": array(I32, [[0, 1, 4], [0, 2, 0]])},
    "swap_out": {"blocks": array(I32, [4, 4]), "target": np.zeros((2, 896), np.uint8)},
    "swap_in": {"blocks": array(I32, [4, 0]), "source": np.zeros((2, 896), np.uint8)},
    "poison": {"block_tables": TABLES, "seq_lens": LENS},
}

BAD_TABLES = [
    ("block_tables", [[3, 5], [2, 99]]),
    ("block_tables", TABLES.astype(I64)),
    ("block_tables", TABLES[0]),
    ("block_tables", TABLES[:1]),
    ("block_tables", array(I32, [[3, 6], [2, 99]])),
    ("block_tables", array(I32, [[3, -1], [2, 99]])),
    ("block_tables", array(I32, [[3, 2**31 - 1], [2, 99]])),
    ("block_tables", array(I32, [[3], [2]])),
    ("seq_lens", LENS.astype(I64)),
    ("seq_lens", LENS.astype(">i4")),
    ("seq_lens", LENS[:1]),
    ("seq_lens", array(I32, [7, -1])),
    ("seq_lens", array(I32, [9, 4])),
    ("seq_lens", array(I32, [2**31 - 1, 4])),
    ("seq_lens", [7, 4]),
]
BAD_QUERIES = [
    ("layer", 2),
    ("q", floats(2, 4, 8).tolist()),
    ("q", floats(2, 4, 8).astype(I32)),
    ("q", floats(2, 4, 6)),
    ("q", floats(2, 3, 8)),
    ("q", floats(2, 0, 8)),
    ("q", floats(2, 32)),
    ("q", floats(5, 4, 8)),
    ("scale", np.nan),
    ("scale", np.inf),
    ("scale", "1"),
    ("window", 0),
    ("window", -3),
    ("window", 2.0),
    ("window", True),
]
BAD = {
    "append": [
        ("layer", -1),
        ("k", K.tolist()),
        ("k", K.astype(np.int8)),
        ("k", floats(3, 2, 6)),
        ("k", floats(3, 1, 8)),
        ("k", floats(3, 16)),
        ("v", floats(3, 2, 8)),
        ("v", floats(2, 2, 6)),
        ("v", V.astype(np.float64)),
        ("v", V.astype(np.float16)),
        ("v", None),
        ("slot_mapping", SLOTS.astype(I32)),
        ("slot_mapping", SLOTS.astype(np.float64)),
        ("slot_mapping", [0, 9, -1]),
        ("slot_mapping", SLOTS[None]),
        ("slot_mapping", array(I64, [0, 1, 2, 3])),
        ("slot_mapping", array(I64, [0, 1, BLOCKS * SIZE])),
        ("slot_mapping", array(I64, [0, 1, 2**62])),
        ("slot_mapping", array(I64, [5, 1, 5])),
    ],
    "gather": [("layer", "0"), *BAD_TABLES],
    "poison": BAD_TABLES,
    "decode": [*BAD_TABLES, *BAD_QUERIES],
    "prefill": [
        *BAD_TABLES,
        *(case for case in BAD_QUERIES if case[0] != "q"),
        ("q", floats(3, 4, 6)),
        ("q", floats(3, 3, 8)),
        ("query_start", STARTS.astype(I64)),
        ("query_start", STARTS[:2]),
        ("query_start", [0, 2, 3]),
        ("query_start", array(I32, [1, 2, 3])),
        ("query_start", array(I32, [0, 2, 2])),
        ("query_start", array(I32, [0, 2, 4])),
        ("query_start", array(I32, [0, 4, 3])),
        ("seq_lens", array(I32, [1, 4])),
    ],
    "copy_blocks": [
        ("copies", [[0, 1, 4]]),
        ("copies", array(I64, [[0, 1, 4]])),
        ("copies", array(I32, [[0, 1]])),
        ("copies", array(I32, [0, 1, 4])),
        ("copies", array(I32, [[BLOCKS, 1, 4]])),
        ("copies", array(I32, [[0, BLOCKS, 4]])),
        ("copies", array(I32, [[-1, 1, 4]])),
        ("copies", array(I32, [[0, -1, 4]])),
        ("copies", array(I32, [[0, 1, SIZE + 1]])),
        ("copies", array(I32, [[0, 1, -1]])),
        ("copies", array(I32, [[0, 1, 4], [2, 1, 4]])),
        ("copies", array(I32, [[0, 1, 4], [1, 2, 4]])),
        ("copies", array(I32, [[3, 3, 4]])),
    ],
    "swap_out": [
        ("blocks", [4, 4]),
        ("blocks", array(I64, [4, 4])),
        ("blocks", array(I32, [[4, 4]])),
        ("blocks", array(I32, [4, BLOCKS])),
        ("blocks", array(I32, [4, -1])),
        ("target", np.zeros((2, 895), np.uint8)),
        ("target", np.zeros((1, 896), np.uint8)),
        ("target", np.zeros((2, 896), np.int8)),
        ("target", None),
    ],
    "swap_in": [
        ("blocks", array(I32, [4, 4])),
        ("blocks", array(I32, [4, BLOCKS])),
        ("source", np.zeros((2, 895), np.uint8)),
        ("source", np.zeros((3, 896), np.uint8)),
        ("source", bytes(1792)),
    ],
}
CASES = [(operation, name, value) for operation, bad in BAD.items() for name, value in bad]


@pytest.fixture(params=["NHD", "HND"])
def kv(request):
    kv = PagedKV(KVSpec(LAYERS, BLOCKS, SIZE, 2, 8, 6, layout=request.param))
    kv.buffer[:] = np.random.default_rng(0).integers(0, 100, kv.nbytes)
    return kv


@pytest.mark.parametrize("operation", GOOD)
def test_what_the_cases_differ_from_is_good(kv, operation):
    getattr(reference, operation)(kv, **GOOD[operation])


@pytest.mark.parametrize(("operation", "name", "value"), CASES)
def test_bad_argument_is_named_and_nothing_is_written(kv, operation, name, value):
    arguments = {**GOOD[operation], name: value}
    given = {key: np.copy(each) for key, each in arguments.items() if isinstance(each, np.ndarray)}
    before = kv.buffer.tobytes()
    with pytest.raises(RequestError) as caught:
        getattr(reference, operation)(kv, **arguments)
    narrow = name == "block_tables" and isinstance(value, np.ndarray) and value.shape == (2, 1)
    blamed = {"seq_lens"} if narrow else {name, *({"seq_lens"} if name == "block_tables" else ())}
    assert caught.value.argument in blamed
    assert caught.value.message
    assert kv.buffer.tobytes() == before
    assert all(np.array_equal(each, arguments[key]) for key, each in given.items())


def test_entries_that_are_not_read_may_be_anything(kv):
    wild = array(I32, [[3, 5, 2**31 - 1], [2, -7, 99]])
    out = reference.decode(kv, 0, Q, wild, LENS)
    assert np.array_equal(out, reference.decode(kv, 0, Q, TABLES, LENS))


def test_messages_say_where_and_how_much(kv):
    cases = [
        ("seq_lens", array(I32, [7, 9]), "row 1 has 9 tokens, its table has room for 8"),
        ("block_tables", array(I32, [[3, 6], [2, 0]]), "entry 6 at [0, 1] is no block of the 6"),
    ]
    for name, value, message in cases:
        with pytest.raises(RequestError) as caught:
            reference.gather(kv, **{**GOOD["gather"], name: value})
        assert str(caught.value) == f"{name}: {message}"
    with pytest.raises(RequestError) as caught:
        reference.gather(kv, 0, TABLES, array(I32, [7, 9]))
    assert (caught.value.limit, caught.value.excess) == (8, 1)

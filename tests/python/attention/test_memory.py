"""The shape of KV memory, its bytes and budget; owned and adopted arrays; DLPack; no extension."""

import importlib
import subprocess
import sys
import types

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import octavo._optional
from octavo.attention import KVSpec, PagedKV, reference
from octavo.errors import ConfigError, MissingDependencyError, RequestError

SHAPE = {"num_layers": 2, "num_blocks": 6, "block_size": 4, "num_kv_heads": 3, "head_dim": 8}
FP8 = {"dtype": "float8_e4m3", "k_scale": 0.5, "v_scale": 0.5}
WIDTHS = [("float64", 8), ("float32", 4), ("float16", 2), ("bfloat16", 2), ("float8_e4m3", 1)]


# --- the shape ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "width"), WIDTHS)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_bytes_are_exact(dtype, width, layout):
    scales = FP8 if dtype == "float8_e4m3" else {}
    spec = KVSpec(**{**SHAPE, "v_head_dim": 6, "dtype": dtype, "layout": layout, **scales})
    assert spec.bytes_per_token == 2 * 3 * (8 + 6) * width
    assert spec.bytes_per_block == 4 * spec.bytes_per_token
    kv = PagedKV(spec)
    parts = [plane.nbytes for layer in range(2) for plane in (kv.k(layer), kv.v(layer))]
    assert kv.nbytes == spec.nbytes == kv.buffer.nbytes == sum(parts)


@given(memory=st.integers(1, 10**9), width=st.sampled_from([2, 64, 128]), heads=st.integers(1, 9))
def test_budget_gives_the_most_blocks_that_fit(memory, width, heads):
    shape = {"num_layers": 3, "block_size": 16, "num_kv_heads": heads, "head_dim": width}
    least = KVSpec(num_blocks=1, **shape).bytes_per_block
    if memory < least:
        with pytest.raises(ConfigError) as caught:
            KVSpec.for_budget(memory, **shape)
        assert caught.value.field == "memory_bytes"
    else:
        spec = KVSpec.for_budget(memory, **shape)
        assert spec.nbytes <= memory < spec.nbytes + spec.bytes_per_block


LLAMA = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}


def test_model_configuration_gives_the_shape():
    spec = KVSpec.for_model(LLAMA, 10**9, dtype="bfloat16")
    assert (spec.num_layers, spec.num_kv_heads, spec.head_dim) == (32, 8, 128)
    assert spec.bytes_per_token == 131_072
    assert spec.num_blocks == 10**9 // (16 * 131_072)
    assert KVSpec.for_model({**LLAMA, "head_dim": 64}, 10**9).head_dim == 64
    assert KVSpec.for_model({**LLAMA, "num_key_value_heads": None}, 10**9).num_kv_heads == 32


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_key_value_heads": "8"}, "num_key_value_heads"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"head_dim": 7}, "head_dim"),
    ],
)
def test_bad_entry_of_a_model_configuration_is_named(change, field):
    with pytest.raises(ConfigError) as caught:
        KVSpec.for_model({**LLAMA, **change}, 10**9)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_layers", 0),
        ("num_layers", True),
        ("num_blocks", 0),
        ("num_blocks", 2**31),
        ("num_blocks", 1.0),
        ("block_size", 0),
        ("block_size", 257),
        ("block_size", None),
        ("num_kv_heads", -1),
        ("head_dim", 0),
        ("head_dim", 63),
        ("v_head_dim", 0),
        ("v_head_dim", 5),
        ("dtype", "int8"),
        ("dtype", np.float32),
        ("layout", "DHN"),
        ("layout", "MLA"),
        ("k_scale", 1.0),
        ("v_scale", [1.0, 1.0, 1.0]),
    ],
)
def test_bad_field_is_named(field, value):
    with pytest.raises(ConfigError) as caught:
        KVSpec(**{**SHAPE, field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["k_scale", "v_scale"])
@pytest.mark.parametrize(
    "scale",
    [None, 0.0, -1.0, np.nan, np.inf, 1e-300, "x", [1.0, 1.0], [1.0, 0.0, 1.0], ["x", 1, 1], []],
)
def test_fp8_without_a_good_scale_is_named(field, scale):
    with pytest.raises(ConfigError) as caught:
        KVSpec(**{**SHAPE, **FP8, field: scale})
    assert caught.value.field == field


@pytest.mark.parametrize("change", [{"v_head_dim": 0}, {"layout": "mla"}])
def test_latent_planes_are_refused_by_name(change):
    with pytest.raises(ConfigError, match="MLA"):
        KVSpec(**{**SHAPE, **change})


def test_more_bytes_than_can_be_addressed_are_refused():
    with pytest.raises(ConfigError, match="num_blocks"):
        KVSpec(1000, 2**31 - 1, 256, 1024, 1024)


def test_specs_with_the_same_meaning_are_equal():
    assert KVSpec(**SHAPE) == KVSpec(**{**SHAPE, "v_head_dim": np.int64(8)})
    scales = {"dtype": "float8_e4m3", "v_scale": 1}
    one = KVSpec(**{**SHAPE, **scales, "k_scale": [1, 2, 3]})
    assert one == KVSpec(**{**SHAPE, **scales, "k_scale": np.array([1.0, 2.0, 3.0])})
    assert hash(one) == hash(KVSpec(**{**SHAPE, **scales, "k_scale": (1, 2, 3)}))


# --- owned and adopted ----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_owned_arrays_are_views_of_one_allocation_and_do_not_overlap(layout):
    kv = PagedKV(KVSpec(**{**SHAPE, "layout": layout, "v_head_dim": 6}))
    assert kv.k(1).shape == ((6, 4, 3, 8) if layout == "NHD" else (6, 3, 4, 8))
    planes = [plane for layer in range(2) for plane in (kv.k(layer), kv.v(layer))]
    for number, plane in enumerate(planes):
        assert np.shares_memory(plane, kv.buffer)
        plane[...] = number
    assert [set(plane.ravel().tolist()) for plane in planes] == [{0}, {1}, {2}, {3}]
    assert kv.pages(0)[1].shape == (6, 4, 3, 6)


@pytest.mark.parametrize("layer", [-1, 2, True, 1.0, None, "0"])
def test_layer_that_is_not_there_is_named(layer):
    kv = PagedKV(KVSpec(**SHAPE))
    for call in (kv.k, kv.v, kv.pages):
        with pytest.raises(RequestError) as caught:
            call(layer)
        assert caught.value.argument == "layer"
    assert kv.k(np.int64(1)) is kv.k(1)


def arrays(layers=2, shape=(6, 4, 3, 8), dtype=np.float32):
    return [(np.zeros(shape, dtype), np.zeros(shape, dtype)) for _ in range(layers)]


def test_adopted_arrays_are_not_copied_whatever_their_strides():
    # Keys and values of a layer side by side, as some engines hold them.
    both = np.zeros((2, 6, 2, 4, 3, 8), np.float32)
    kv = PagedKV(KVSpec(**SHAPE), arrays=[(layer[:, 0], layer[:, 1]) for layer in both])
    assert kv.buffer is None
    assert np.shares_memory(kv.k(1), both)
    k = np.ones((1, 3, 8), np.float32)
    reference.append(kv, 1, k, 2 * k, np.array([9]))
    assert both.sum() == 3 * 24
    assert (both[1, 2, :, 1] == np.array([1, 2])[:, None, None]).all()


def with_second(plane, array):
    given_ = arrays()
    given_[1] = (array, given_[1][1]) if plane == "K" else (given_[1][0], array)
    return given_


READ_ONLY = np.zeros((6, 4, 3, 8), np.float32)
READ_ONLY.flags.writeable = False
SAME = np.zeros((6, 4, 3, 8), np.float32)


@pytest.mark.parametrize(
    ("given_", "name", "words"),
    [
        (arrays(1), "arrays", "1 pairs"),
        (with_second("K", np.zeros((6, 4, 3, 6), np.float32)), "arrays[1]", "K has the shape"),
        (with_second("V", np.zeros((6, 3, 4, 8), np.float32)), "arrays[1]", "V has the shape"),
        (with_second("V", np.zeros((6, 4, 3, 8))), "arrays[1]", "V is float64"),
        (with_second("K", [[1.0]]), "arrays[1]", "K is a list"),
        (with_second("K", READ_ONLY), "arrays[1]", "K is read-only"),
        (with_second("V", None), "arrays[1]", "MLA"),
        ([SAME, SAME], "arrays[0]", "MLA"),
        ([(SAME,), (SAME,)], "arrays[0]", "MLA"),
        ([(SAME, SAME), (SAME, SAME)], "arrays[0]", "MLA"),
    ],
)
def test_bad_array_is_named(given_, name, words):
    with pytest.raises(RequestError) as caught:
        PagedKV(KVSpec(**SHAPE), arrays=given_)
    assert caught.value.argument == name
    assert words in caught.value.message


# --- DLPack ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_dlpack_takes_arrays_without_a_copy_and_gives_them_on(layout):
    given_ = [(np.zeros((6, 4, 3, 8)), np.zeros((6, 4, 3, 6))) for _ in range(2)]
    kv = PagedKV.from_dlpack(given_, layout=layout)
    heads, size = (3, 4) if layout == "NHD" else (4, 3)
    assert kv.spec == KVSpec(2, 6, size, heads, 8, 6, dtype="float64", layout=layout)
    kv.v(1)[5] = 7
    assert (given_[1][1][5] == 7).all()
    assert np.shares_memory(np.from_dlpack(kv.k(0)), given_[0][0])


def test_dlpack_takes_bfloat16_and_fp8_as_integers():
    halves = np.zeros((6, 4, 3, 8), np.uint16), np.zeros((6, 4, 3, 8), np.uint16)
    kv = PagedKV.from_dlpack([halves], dtype="bfloat16")
    kv.k(0)[0] = 1
    assert kv.k(0).dtype == ml_dtypes.bfloat16
    assert (halves[0][0] == 0x3F80).all()
    quarters = np.zeros((6, 4, 3, 8), np.uint8), np.zeros((6, 4, 3, 8), np.uint8)
    kv = PagedKV.from_dlpack([quarters], **FP8)
    kv.v(0)[0] = 1
    assert (quarters[1][0] == 0x38).all()


def test_fp8_may_be_bytes_without_ml_dtypes(monkeypatch):
    spec = KVSpec(**{**SHAPE, **FP8})
    quarters = arrays(dtype=np.uint8)
    with monkeypatch.context() as patch:
        absent = types.SimpleNamespace(find_spec=lambda name: None)
        patch.setattr(octavo._optional.importlib, "util", absent)
        kv = PagedKV(spec, arrays=quarters)
        k = np.full((1, 3, 8), 1.5, np.float32)
        reference.append(kv, 0, k, -k, np.array([9]))
    assert (kv.spec.dtype, kv.dtype, kv.nbytes) == ("float8_e4m3", np.uint8, spec.nbytes)
    assert (quarters[0][0][2, 1] == 0x44).all()
    assert (quarters[0][1][2, 1] == 0xC4).all()
    mixed = [quarters[0], (quarters[1][0], quarters[1][1].view(ml_dtypes.float8_e4m3fn))]
    with pytest.raises(RequestError, match=r"arrays\[1\]: V is float8_e4m3fn, needed is uint8"):
        PagedKV(spec, arrays=mixed)


class Far:
    """A producer whose memory NumPy cannot reach."""

    def __dlpack__(self, **_):
        raise BufferError("it is on another device")

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize(
    ("given_", "options", "name", "words"),
    [
        ([], {}, "producers", "empty"),
        ([(SAME, None)], {}, "arrays[0]", "MLA"),
        ([(SAME, [1.0])], {}, "arrays[0]", "without __dlpack__"),
        ([(SAME, np.zeros((2, 2)))], {}, "arrays[0]", "has 2 axes"),
        ([(SAME, Far())], {}, "arrays[0]", "another device"),
        ([(SAME, SAME)], {"dtype": "bfloat16"}, "arrays[0]", "K is float32"),
        ([(SAME, SAME)], {}, "arrays[0]", "MLA"),
        ([*arrays(1), *arrays(1, (5, 4, 3, 8))], {}, "arrays[1]", "K has the shape"),
        ([*arrays(1), *arrays(1, dtype=np.float64)], {}, "arrays[1]", "K is float64"),
    ],
)
def test_bad_producer_is_named(given_, options, name, words):
    with pytest.raises(RequestError) as caught:
        PagedKV.from_dlpack(given_, **options)
    assert caught.value.argument == name
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("options", "field"),
    [({"layout": "MLA"}, "layout"), ({"dtype": "int8"}, "dtype"), ({"k_scale": 1.0}, "k_scale")],
)
def test_bad_setting_of_adopted_memory_is_named(options, field):
    with pytest.raises(ConfigError) as caught:
        PagedKV.from_dlpack(arrays(), **options)
    assert caught.value.field == field


def test_integers_are_no_memory():
    with pytest.raises(ConfigError) as caught:
        PagedKV.from_dlpack(arrays(dtype=np.int32))
    assert caught.value.field == "dtype"


@pytest.mark.compat
@pytest.mark.parametrize("name", ["float32", "float16", "float64", "bfloat16"])
def test_cpu_tensor_of_pytorch_shares_its_memory(name):
    torch = importlib.import_module("torch")
    keys, values = (torch.zeros(6, 4, 3, 8, dtype=getattr(torch, name)) for _ in range(2))
    given_, dtype = (keys, values), None
    if name == "bfloat16":
        given_, dtype = (keys.view(torch.uint16), values.view(torch.uint16)), name
    kv = PagedKV.from_dlpack([given_], dtype=dtype)
    assert kv.spec.dtype == name
    k = np.ones((1, 3, 8), np.float32)
    reference.append(kv, 0, k, 3 * k, np.array([23]))
    assert keys[5, 3].eq(1).all()
    assert values[5, 3].eq(3).all()
    keys[0, 0] = 2
    assert (kv.k(0)[0, 0] == 2).all()
    if name != "bfloat16":
        assert torch.from_dlpack(kv.v(0)).data_ptr() == values.data_ptr()


# --- what is not installed ------------------------------------------------------------------------


def test_attention_works_without_the_extension():
    code = """
import sys
sys.modules["octavo._core"] = None
import doctest
import octavo.attention
assert doctest.testmod(octavo.attention).attempted > 5
try:
    octavo.Scheduler
except octavo.MissingDependencyError as error:
    print(error)
assert not hasattr(octavo, "nothing")
"""
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout == "octavo._core is not usable: octavo.Scheduler needs the extension\n"


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, FP8])
def test_missing_ml_dtypes_is_named_where_it_is_needed(monkeypatch, options):
    spec = KVSpec(**{**SHAPE, **options})
    absent = types.SimpleNamespace(find_spec=lambda name: None)
    monkeypatch.setattr(octavo._optional.importlib, "util", absent)
    assert spec.nbytes > 0
    with pytest.raises(MissingDependencyError, match=r"octavo\[attention\]"):
        PagedKV(spec)
    assert PagedKV(KVSpec(**SHAPE)).k(0).dtype == np.float32

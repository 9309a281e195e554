"""Checkpoints that the tests write, read back; and every way in which one can be broken, named."""

import json
import struct

import numpy as np
import pytest

import octavo
from octavo.model import LlamaConfig, Rope, load_weights, random_weights, read_config
from octavo.model.safetensors import TensorFile
from support import llamas

CONFIG = llamas.tiny(eos_token_ids=(2, 3))
WEIGHTS = random_weights(CONFIG, 7)
WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path):
    llamas.write_checkpoint(tmp_path, CONFIG, WEIGHTS)
    return tmp_path


@pytest.fixture
def sharded(tmp_path):
    llamas.write_checkpoint(tmp_path, CONFIG, WEIGHTS, shards=3)
    return tmp_path


def edit(path, **changes):
    """Changes keys of a JSON file; None takes one away."""
    values = json.loads(path.read_text("utf-8")) | changes
    values = {key: value for key, value in values.items() if value is not None}
    path.write_text(json.dumps(values), encoding="utf-8")


@pytest.mark.parametrize("config", llamas.VARIANTS.values(), ids=llamas.VARIANTS.keys())
@pytest.mark.parametrize("shards", [1, 3])
def test_checkpoints_are_read_back(tmp_path, config, shards):
    weights = random_weights(config, 7)
    llamas.write_checkpoint(tmp_path, config, weights, shards=shards)
    assert read_config(tmp_path) == config
    found = load_weights(tmp_path, config)
    assert found.keys() == weights.keys()
    assert all((found[name] == weights[name]).all() for name in weights)


@pytest.mark.parametrize(("kind", "error"), [("F64", 0), ("F16", 2**-11), ("BF16", 2**-7)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_types_are_converted(tmp_path, kind, error, dtype):
    llamas.write_checkpoint(tmp_path, CONFIG, WEIGHTS, kind=kind)
    for name, found in load_weights(tmp_path, CONFIG, dtype=dtype).items():
        assert found.dtype == dtype
        np.testing.assert_allclose(found, WEIGHTS[name], rtol=error, atol=1e-6 if error else 0)


def test_bfloat16_is_read_to_the_bit(tmp_path):
    path = tmp_path / "x.safetensors"
    values = np.array([0x3F80, 0xC000, 0x0001, 0x7F80, 0xFF80, 0x7FC0], dtype="<u2")
    header = {"x": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + values.tobytes())
    expected = [[1.0, -2.0, 2.0**-133], [np.inf, -np.inf, np.nan]]
    np.testing.assert_array_equal(TensorFile(path).read("x"), np.float32(expected))


def test_random_weights_depend_on_seed_and_name():
    assert (random_weights(CONFIG, 7)["lm_head.weight"] == WEIGHTS["lm_head.weight"]).all()
    assert (random_weights(CONFIG, 8)["lm_head.weight"] != WEIGHTS["lm_head.weight"]).any()
    deeper = random_weights(llamas.tiny(num_layers=3), 7)
    assert (deeper["lm_head.weight"] == WEIGHTS["lm_head.weight"]).all()
    assert sum(weight.size for weight in WEIGHTS.values()) == CONFIG.num_parameters


def test_what_old_checkpoints_store_beside_the_weights_is_left_out(tmp_path):
    tied = llamas.tiny(tie_word_embeddings=True)
    more = WEIGHTS | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4)}
    llamas.write_checkpoint(tmp_path, tied, more)
    assert load_weights(tmp_path, tied).keys() == tied.tensors().keys()


def test_newer_and_older_configurations_say_the_same():
    older = llamas.config_json(llamas.VARIANTS["llama3"])
    scaling = older.pop("rope_scaling") | {"rope_theta": older.pop("rope_theta")}
    newer = older | {"rope_parameters": scaling}
    assert LlamaConfig.from_dict(newer) == llamas.VARIANTS["llama3"]
    named = older | {"rope_scaling": {"type": "linear", "factor": 2.0}}
    assert LlamaConfig.from_dict(named).rope == Rope("linear", factor=2.0)


def test_what_is_left_out_has_its_default(folder):
    left_out = ("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps")
    edit(folder / "config.json", **dict.fromkeys(left_out), eos_token_id=5)
    config = read_config(folder)
    assert (config.num_kv_heads, config.head_dim, config.max_position_embeddings) == (4, 8, 2_048)
    assert (config.rms_norm_eps, config.eos_token_ids) == (1e-6, (5,))


def test_generation_config_has_the_last_word_on_ends(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [9, 8]}', encoding="utf-8")
    assert read_config(folder).eos_token_ids == (9, 8)


BAD_CONFIGS = {
    "architecture": ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not known"),
    "no architecture": ({"architectures": [], "model_type": "x"}, "names no architecture"),
    "missing size": ({"hidden_size": None}, "hidden_size is missing"),
    "size": ({"hidden_size": -1}, "hidden_size = -1 is no whole number"),
    "heads": ({"num_key_value_heads": 3}, "num_kv_heads = 3"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config"),
    "partial rotation": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "scaling": ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "rope_type = 'yarn'"),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_type = 'dynamic'"),
    "no object": ({"rope_scaling": 3}, "rope_scaling = 3"),
    "epsilon": ({"rms_norm_eps": "small"}, "rms_norm_eps = 'small'"),
    "flag": ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes'"),
    "end": ({"eos_token_id": "</s>"}, "eos_token_id = '</s>'"),
}


@pytest.mark.parametrize(("changes", "reason"), BAD_CONFIGS.values(), ids=BAD_CONFIGS.keys())
def test_bad_configurations_name_file_and_field(folder, changes, reason):
    edit(folder / "config.json", **changes)
    with pytest.raises(octavo.CheckpointError) as caught:
        read_config(folder)
    assert caught.value.file == str(folder / "config.json")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [(None, "is not there"), ("{", "no readable JSON"), ("[]", "no JSON object")],
)
def test_configurations_that_are_none_are_named(folder, text, reason):
    path = folder / "config.json"
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    with pytest.raises(octavo.CheckpointError, match=reason):
        read_config(folder)


def refused(folder, file, reason, tensor=None):
    with pytest.raises(octavo.CheckpointError) as caught:
        load_weights(folder, CONFIG)
    assert caught.value.file == str(folder / file)
    assert caught.value.tensor == tensor
    assert reason in str(caught.value)


def without(*names):
    return {name: weight for name, weight in WEIGHTS.items() if name not in names}


NORM, UP = "model.norm.weight", "model.layers.1.mlp.up_proj.weight"


def test_missing_extra_and_misshapen_tensors_are_named(tmp_path):
    llamas.write_checkpoint(tmp_path, CONFIG, without(NORM, UP))
    refused(tmp_path, WHOLE, "is missing, and 1 more", UP)
    llamas.write_checkpoint(tmp_path, CONFIG, WEIGHTS | {"extra": WEIGHTS[NORM]})
    refused(tmp_path, WHOLE, "is not part of this model", "extra")
    llamas.write_checkpoint(tmp_path, CONFIG, WEIGHTS | {NORM: WEIGHTS[NORM][:-1]})
    refused(tmp_path, WHOLE, "has the shape [31], [32] is expected", NORM)


def test_files_that_are_not_there_are_named(folder):
    (folder / WHOLE).unlink()
    refused(folder, WHOLE, "is not there")


def test_truncated_files_are_named_at_every_length(folder):
    path = folder / WHOLE
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for length in (0, 7, 8, header - 1, header, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(folder, WHOLE, "is truncated")
    path.write_bytes(whole + b"x")
    refused(folder, WHOLE, "has 1 bytes behind its tensors")


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD_HEADERS = {
    "no JSON": ("{", "no JSON"),
    "no object": ("[]", "no JSON object"),
    "twice": ('{"x": 1, "x": 2}', "stands twice"),
    "no entry": ({"x": 3}, "x has no dtype, shape and data_offsets"),
    "no offsets": ({"x": {"dtype": "F32", "shape": [2]}}, "x has no dtype"),
    "three offsets": ({"x": GOOD | {"data_offsets": [0, 4, 8]}}, "x has no dtype"),
    "type": ({"x": GOOD | {"dtype": "I64"}}, "x is of type I64: F64"),
    "negative": ({"x": GOOD | {"shape": [-2]}}, "x has a shape or data_offsets"),
    "fraction": ({"x": GOOD | {"shape": [2.0]}}, "x has a shape or data_offsets"),
    "size": ({"x": GOOD | {"shape": [3]}}, "x has 8 bytes, its shape 12"),
    "gap": ({"x": GOOD | {"data_offsets": [4, 12]}}, "x does not begin where"),
    "overlap": ({"x": GOOD, "y": GOOD | {"data_offsets": [4, 12]}}, "y does not begin where"),
}


@pytest.mark.parametrize(("header", "reason"), BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_bad_headers_are_named(tmp_path, header, reason):
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(octavo.CheckpointError, match=reason) as caught:
        TensorFile(path)
    assert caught.value.file == str(path)


def test_a_header_of_a_terabyte_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 2**40) + b"{}")
    with pytest.raises(octavo.CheckpointError, match="no safetensors file"):
        TensorFile(path)


def test_bad_indexes_and_shards_are_named(sharded):
    index = sharded / INDEX
    weight_map = json.loads(index.read_text("utf-8"))["weight_map"]
    first = weight_map[NORM]

    llamas.write_index(sharded, {name: weight_map[name] for name in without(NORM)})
    refused(sharded, first, f"is not in {INDEX}", NORM)
    llamas.write_index(sharded, weight_map | {"ghost": first})
    refused(sharded, first, f"is missing, though {INDEX} names it", "ghost")
    other = next(shard for shard in weight_map.values() if shard != first)
    llamas.write_index(sharded, weight_map | {NORM: other})
    refused(sharded, other, "is missing, though", NORM)
    for outside in ("../x.safetensors", "/x.safetensors", 3):
        llamas.write_index(sharded, weight_map | {NORM: outside})
        refused(sharded, INDEX, f"names {outside!r}, which is no file of its folder")
    index.write_text("{}", encoding="utf-8")
    refused(sharded, INDEX, "has no weight_map")
    llamas.write_index(sharded, weight_map)
    shard = sharded / first
    shard.write_bytes(shard.read_bytes()[:-4])
    refused(sharded, first, "is truncated")
    shard.unlink()
    refused(sharded, first, "is not there")

"""The model, its sampler and its engine over arrays that are not NumPy's."""

import re
import subprocess
import sys

import numpy as np
import pytest

import octavo
from octavo.attention import gpu
from octavo.cli import main
from octavo.model import Engine, Llama, LlamaConfig, Sampling, random_weights, sample
from octavo.model.sampler import _draw
from support import llamas
from support.fake_cupy import install

SMALL = {"num_blocks": 40, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 16}


@pytest.fixture
def cupy(monkeypatch):
    return install(monkeypatch)


def test_an_engine_on_a_device_says_the_same(cupy):
    config = llamas.tiny()
    weights = random_weights(config, 1, dtype="float64")
    told = []
    for xp in (np, cupy):
        model = Llama(config, weights, dtype="float64", xp=xp)
        engine = Engine(model, **SMALL)
        assert isinstance(engine.kv.k(0), xp.ndarray)
        samplings = [Sampling(), Sampling(0.8, seed=4), Sampling(1.0, top_k=7, top_p=0.9, seed=5)]
        added = [
            engine.add([1, 2, 3, 4, 5 + place], max_tokens=9, sampling=sampling, n=1 + place)
            for place, sampling in enumerate(samplings)
        ]
        engine.run()
        told.append([generation.tokens for generation in added])
        plain = model.plain([7, 3, 9])
        assert isinstance(plain, xp.ndarray)
    assert told[0] == told[1]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_step_runs_every_layer_on_kernels(cupy, dtype):
    config = llamas.tiny(head_dim=64)
    model = Llama(config, random_weights(config, 1), dtype=dtype, xp=cupy)
    attention = gpu.backend()
    engine = Engine(model, backend=attention, **SMALL)
    # Kernels that do nothing leave what is there: nothing that is no number.
    cupy.empty = cupy.zeros
    engine.add([1, 2, 3], max_tokens=3)
    engine.step()
    engine.add([4, 5], max_tokens=3)
    engine.step()
    names = [launch.name.partition("<")[0] for launch in cupy.world.launches]
    prefill = ["prefill_mma"] if dtype != "float32" else ["expand_queries", "decode_cores"]
    assert names == ["append", *prefill] * 2 + ["append", "decode_cores", *prefill] * 2


def test_memory_that_kernels_cannot_read_is_named_before_anything_is_written(cupy):
    model = Llama(llamas.tiny(), random_weights(llamas.tiny()), dtype="float64", xp=cupy)
    engine = Engine(model, backend=gpu.backend(), **SMALL)
    engine.add([1, 2, 3], max_tokens=3)
    with pytest.raises(octavo.RequestError, match="kv: holds float64; kernels take"):
        engine.step()


def test_a_model_without_cublas_says_what_to_install(cupy):
    cupy.world.has_cublas = False
    with pytest.raises(octavo.MissingDependencyError, match=r"install cuda-toolkit\[cublas\]"):
        Llama(llamas.tiny(), random_weights(llamas.tiny()), xp=cupy)


def test_heaps_that_fall_by_a_rounding_choose_nobody_without_a_share(cupy):
    """Sums in parallel may round so that a heap is less than the one before it."""

    class Parallel:
        """CuPy's sums: here each is off by a rounding, up and down by turns."""

        def __getattr__(self, name):
            return getattr(np, name)

        def cumsum(self, values, axis):
            heaps = np.cumsum(values, axis=axis)
            heaps[:, ::2] *= 1 + 2**-50
            heaps[:, 1::2] *= 1 - 2**-50
            return heaps

    logits = np.full((1, 8), -np.inf)
    logits[0, [2, 5]] = 0.0
    one = [Sampling(1.0)]
    for number in (0.0, 0.4999999999999999, 0.5, 0.9999999999999999):
        for xp in (np, Parallel()):
            [token] = _draw(logits, one, np.array([number]), is_cut=False, xp=xp)
            assert token in {2, 5}
    assert sample(cupy.asarray(logits), one, [3], xp=cupy).tolist() in ([2], [5])


def test_the_model_runs_without_the_extension():
    code = """
import sys
sys.modules["octavo._core"] = None
from octavo import model
config = model.LlamaConfig(
    vocab_size=9, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=2, num_kv_heads=1,
    head_dim=4,
)
print(model.Llama(config, model.random_weights(config)).plain([1, 2]).shape)
try:
    model.Engine
except model.MissingDependencyError as error:
    print(error)
assert not hasattr(model, "nothing")
"""
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    needs = "octavo._core is not usable: octavo.model.Engine needs the extension\n"
    assert told.stdout == f"(2, 9)\n{needs}"


@pytest.fixture
def generate(capsys, monkeypatch):
    config = llamas.tiny(head_dim=64)
    monkeypatch.setattr(LlamaConfig, "small", staticmethod(lambda: config))

    def run(*words):
        code = main(["generate", *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_generate_runs_on_a_device(cupy, generate):
    cupy.empty = cupy.zeros
    code, out, _ = generate("--device", "gpu", "--dtype", "bfloat16", "--max-tokens", "4")
    assert code == 0
    assert re.fullmatch(r"\d+( \d+){3}\n", out)
    assert {"append", "prefill_mma"} <= {
        launch.name.partition("<")[0] for launch in cupy.world.launches
    }
    code, out, _ = generate("--device", "gpu", "--batch-sweep", "--max-tokens", "2")
    assert (code, len(out.splitlines())) == (0, 8)


def test_generate_without_a_device_is_one_line(generate, monkeypatch):
    install(monkeypatch).world.status = 100
    code, out, err = generate("--device", "gpu")
    assert (code, out) == (2, "")
    assert err.startswith("octavo: error: cupy is not usable: no CUDA device is present")
    code, _, err = generate("--device", "tpu")
    assert (code, err) == (2, "octavo: error: --device tpu: one of cpu, gpu\n")

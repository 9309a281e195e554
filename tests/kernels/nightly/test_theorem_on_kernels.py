"""The theorem through the kernels: the machine of tests/python/theorem with the emulator below it.

In float32 decodes and prefills run on CUDA cores; in float16 on tensor cores, whose weights are
rounded, so that more tokens count as tied. Contexts are split in parts of 16 tokens, which even
these small worlds have several of.
"""

from typing import ClassVar

import numpy as np
from hypothesis import HealthCheck, settings

from emulator.launcher import EmulatorLauncher
from octavo.attention import Backend
from octavo.attention.kernel_backend import KernelBackend
from octavo.model import Llama, random_weights
from support import llamas
from support.texts import Plain
from theorem.test_theorem import VOCABULARY, TheoremInFloat32

# The smallest head that kernels are made for.
SHAPE = llamas.tiny(
    vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, head_dim=64, num_kv_heads=1
)
SETTINGS = settings(
    max_examples=150,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def on(**options) -> Backend:
    return KernelBackend(EmulatorLauncher(resident=24), split_tokens=16, debug=True, **options)


class TheoremOnCores(TheoremInFloat32):
    plain: ClassVar = Plain(llamas.model(SHAPE, dtype="float32"), tie=1e-4)
    backend: ClassVar[Backend] = on()


class TheoremOnTensorCores(TheoremInFloat32):
    plain: ClassVar = Plain(
        Llama(SHAPE, random_weights(SHAPE, 1, dtype="float16"), dtype="float16"), tie=1e-2
    )
    backend: ClassVar[Backend] = on(decode_on="tensor")


TestTheoremOnCores = TheoremOnCores.TestCase
TestTheoremOnTensorCores = TheoremOnTensorCores.TestCase
TestTheoremOnCores.settings = TestTheoremOnTensorCores.settings = SETTINGS


def test_a_tie_is_rare_enough_to_prove_something():
    """Two random logits of these models lie so close in a few of a hundred cases at most."""
    for theorem in (TheoremOnCores, TheoremOnTensorCores):
        random = np.random.default_rng(0)
        close = 0
        for _ in range(200):
            text = random.integers(0, VOCABULARY, 8).tolist()
            best = np.sort(theorem.plain.model.plain(text)[-1].astype(np.float64))[-2:]
            close += bool(best[1] - best[0] < theorem.plain.tie)
        assert close <= 12

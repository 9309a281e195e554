"""The Python examples of the README run as they stand, with a model that echoes."""

import re
import time

import numpy as np
import pytest

import octavo


def blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def namespace() -> dict[str, object]:
    """What the reader of an example has at hand: a prompt, a model, and somewhere to stream to."""
    streamed: list[tuple[int, list[int]]] = []
    return {
        "octavo": octavo,
        "np": np,
        "time": time,
        "prompt": list(range(100)),
        "model": lambda plan: np.zeros(len(plan.sample), np.int32),
        "wait_for_something": lambda: pytest.fail("nothing to wait for"),
        "stream": lambda seq, tokens: streamed.append((seq, tokens)),
        "streamed": streamed,
    }


def test_readme_examples_run(root):
    for block in blocks((root / "README.md").read_text(encoding="utf-8")):
        exec(compile(block, "README.md", "exec"), namespace())  # noqa: S102 - the point of the test

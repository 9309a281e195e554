"""The Python examples of the README run as they stand, with a model that answers 0."""

import re
import time

import numpy as np
import pytest

import octavo

PROMPT = list(range(100))


def blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def examples(root):
    return blocks((root / "README.md").read_text(encoding="utf-8"))


def run(example: str) -> dict[str, object]:
    """Runs an example with what its reader has at hand: a prompt, a model, a place to stream to."""
    streamed: list[tuple[int, list[int]]] = []
    names = {
        "octavo": octavo,
        "np": np,
        "time": time,
        "prompt": PROMPT,
        "model": lambda plan: np.zeros(len(plan.sample), np.int32),
        "wait_for_something": lambda: pytest.fail("nothing to wait for"),
        "stream": lambda seq, tokens: streamed.append((seq, list(tokens))),
        "streamed": streamed,
    }
    exec(compile(example, "README.md", "exec"), names)  # noqa: S102 - the point of the test
    return names


def test_ten_lines_stream_every_token(examples):
    names = run(examples[0])
    [seq] = names["sched"].sequences(names["request"])
    assert names["streamed"] == [(seq, [0])] * 256


def test_every_example_runs(examples):
    assert len(examples) == 4
    assert run(examples[2])["sched"].step(1.0).resumed.tolist()
    assert (run(examples[3])["out"] == 1).all()
    assert "A: 100 tokens in 7 blocks (0 1 2 3 4 5 6)" in run(examples[1])["cache"].draw()


def test_picture_is_what_draw_gives(root):
    cache = octavo.KVCache(64, 16)
    seq = cache.open()
    cache.reserve(seq, 62)
    cache.advance(seq, np.arange(62, dtype=np.int32))
    assert cache.draw().strip() in (root / "README.md").read_text(encoding="utf-8")

"""The command `octavo generate`."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import octavo
from octavo import _optional
from octavo.cli import main
from octavo.model import LlamaConfig, TextStream, Tokenizer, random_weights
from support import llamas

CONFIG = llamas.tiny(eos_token_ids=())
MODEL = llamas.model(CONFIG, 7)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(LlamaConfig, "small", staticmethod(lambda: CONFIG))


@pytest.fixture
def generate(capsys):
    def run(*words):
        code = main(["generate", *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.fixture
def folder(tmp_path):
    llamas.write_checkpoint(tmp_path, CONFIG, random_weights(CONFIG, 7), kind="F64", shards=2)
    return str(tmp_path)


def ids(out):
    return [[int(word) for word in line.split()] for line in out.splitlines()]


def test_a_seed_is_enough(generate):
    code, out, err = generate("--seed", "7", "--max-tokens", "9")
    assert code == 0
    [tokens] = ids(out)
    assert len(tokens) == 9
    assert "9 tokens in " in err
    assert generate("--seed", "7", "--max-tokens", "9")[1] == out
    assert generate("--seed", "8", "--max-tokens", "9")[1] != out


def test_a_checkpoint_says_what_the_plain_model_says(generate, folder):
    words = ("--model", folder, "--prompt-ids", "1,2,3", "--dtype", "float64")
    _, out, _ = generate(*words, "--max-tokens", "9")
    assert ids(out) == [llamas.plain_tokens(MODEL, [1, 2, 3], 9)]


def test_several_texts_are_a_line_each(generate):
    _, out, _ = generate("--n", "3", "--temperature", "1", "--top-p", "0.9", "--max-tokens", "5")
    tokens = ids(out)
    assert [len(line) for line in tokens] == [5, 5, 5]
    assert len(set(map(tuple, tokens))) == 3


def test_texts_end_where_the_model_says(generate, tmp_path):
    plain = llamas.plain_tokens(MODEL, [1, 2, 3], 9)
    config = llamas.tiny(eos_token_ids=(plain[3],))
    llamas.write_checkpoint(tmp_path, config, random_weights(config, 7), kind="F64")
    words = ("--model", str(tmp_path), "--prompt-ids", "1,2,3", "--max-tokens", "9")
    words = (*words, "--dtype", "float64")
    assert ids(generate(*words)[1]) == [plain[: plain.index(plain[3]) + 1]]
    assert ids(generate(*words, "--ignore-eos")[1]) == [plain]


def test_batch_sweep_prints_a_line_for_each_size(generate):
    code, out, _ = generate("--batch-sweep", "--max-tokens", "4")
    assert code == 0
    rows = [re.split(" +", line.strip()) for line in out.splitlines()]
    assert rows[0] == ["batch", "tokens/s", "ms/step", "x"]
    assert [row[0] for row in rows[1:]] == ["1", "2", "4", "8", "16", "32", "64"]
    assert all(float(row[1].replace(",", "")) > 0 for row in rows[1:])


WRONG = {
    "both prompts": (("--prompt", "a", "--prompt-ids", "1"), "one of them"),
    "words to random weights": (("--prompt", "a"), "--prompt needs --model"),
    "no prompt": (("--model", "x"), "say --prompt or --prompt-ids"),
    "no ids": (("--prompt-ids", "1,b"), "--prompt-ids 1,b: whole numbers"),
    "unknown id": (("--prompt-ids", "1,50"), "50 is no token"),
    "no model": (("--model", "nowhere", "--prompt-ids", "1"), "nowhere/config.json: is not there"),
    "temperature": (("--temperature", "-1"), "temperature = -1.0"),
    "type": (("--dtype", "int8"), "dtype = 'int8'"),
    "sweep": (("--batch-sweep", "--max-tokens", "1"), "decodes at least 2"),
    "n": (("--n", "0"), "n"),
    "tokens": (("--max-tokens", "-1"), "max_tokens"),
    "unknown flag": (("--speed", "3"), "--speed is no flag of this verb"),
}


@pytest.mark.parametrize(("words", "reason"), WRONG.values(), ids=WRONG.keys())
def test_mistakes_are_one_line(generate, words, reason):
    code, out, err = generate(*words)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("octavo: error: ")
    assert "internal" not in err
    assert reason in err


class Letters:
    """A tokenizer of letters, whose token 26 is half of a character: two of them are an é."""

    def __init__(self, size=27):
        self.size = size

    @classmethod
    def from_file(cls, path):
        text = Path(path).read_text(encoding="utf-8")
        if "bad" in text:
            message = "expected value at line 1"
            raise Exception(message)  # noqa: TRY002 - what the library raises
        return cls(27 if "small" in text else 51)

    def get_vocab(self, *, with_added_tokens):
        assert with_added_tokens
        return {str(token): token for token in range(self.size)}

    def encode(self, text):
        return SimpleNamespace(ids=[ord(letter) - ord("a") for letter in text])

    def decode(self, tokens, *, skip_special_tokens):
        assert skip_special_tokens
        text = "".join(chr(ord("a") + t) if t < 26 else "½" for t in tokens)
        return text.replace("½½", "é").replace("½", "\N{REPLACEMENT CHARACTER}")


@pytest.fixture
def letters(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Letters))
    monkeypatch.setattr(_optional.importlib.util, "find_spec", lambda name: name)


def test_text_goes_in_and_comes_out(generate, letters, tmp_path):
    config = llamas.tiny(vocab_size=27)
    llamas.write_checkpoint(tmp_path, config, random_weights(config, 3), kind="F64")
    (tmp_path / "tokenizer.json").write_text('"small"', encoding="utf-8")
    words = ("--model", str(tmp_path), "--prompt", "abc", "--dtype", "float64")
    tokens = llamas.plain_tokens(llamas.model(config, 3), [0, 1, 2], 12)
    code, out, _ = generate(*words, "--max-tokens", "12")
    expected = Letters().decode(tokens, skip_special_tokens=True)
    assert (code, out) == (0, expected + "\n")
    _, out, _ = generate(*words, "--max-tokens", "12", "--n", "2")
    assert out == (expected + "\n") * 2


def test_half_characters_wait_for_the_other_half(letters, tmp_path):
    (tmp_path / "tokenizer.json").write_text('"small"', encoding="utf-8")
    text = TextStream(Tokenizer(tmp_path, CONFIG))
    assert [text.push(token) for token in (0, 26, 26, 1, 26)] == ["a", "", "é", "b", ""]
    assert text.flush() == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "is not there"),
        ('"bad"', "is no tokenizer: expected value"),
        ('"large"', "has token 50, the embedding 50 rows"),
    ],
)
def test_tokenizers_that_do_not_match_are_named(letters, tmp_path, text, reason):
    path = tmp_path / "tokenizer.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(octavo.CheckpointError) as caught:
        Tokenizer(tmp_path, CONFIG)
    assert caught.value.file == str(path)
    assert reason in str(caught.value)


def test_absent_library_says_what_to_install(generate, folder, monkeypatch):
    monkeypatch.setattr(_optional.importlib.util, "find_spec", lambda name: None)
    code, _, err = generate("--model", folder, "--prompt", "abc")
    assert code == 2
    assert "install octavo[text], or give token ids" in err

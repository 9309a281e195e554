"""Against Hugging Face: the same weights give the same logits and tokens, both ways.

`make test-compat` installs what is imported here; that it is missing is a failure and not a skip.
"""

import importlib

import numpy as np
import pytest

from octavo.cli import main
from octavo.model import Llama, TextStream, Tokenizer, load_weights, random_weights, read_config
from support import llamas

pytestmark = [
    pytest.mark.compat,
    # Their deprecations are not ours.
    pytest.mark.filterwarnings("ignore"),
]

TOKENS = [7, 3, 3, 49, 0, 12, 7, 3, 20, 21, 22, 1, 40, 41, 8, 9]
# They normalise in float32, whatever the model is in.
CLOSE = {"rtol": 0, "atol": 2e-4}


@pytest.fixture(scope="module")
def torch():
    return importlib.import_module("torch")


@pytest.fixture(scope="module")
def transformers():
    return importlib.import_module("transformers")


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("config", llamas.VARIANTS.values(), ids=llamas.VARIANTS.keys())
def test_they_read_our_checkpoint_and_say_the_same(torch, transformers, tmp_path, config, shards):
    weights = random_weights(config, 1)
    llamas.write_checkpoint(tmp_path, config, weights, shards=shards)
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    assert next(theirs.parameters()).dtype == torch.float32
    ours = Llama(config, weights)
    with torch.no_grad():
        expected = theirs(torch.tensor([TOKENS])).logits[0].numpy()
        # Told what is text: they would take a token 0 for padding.
        mask = torch.ones(1, len(TOKENS), dtype=torch.long)
        prompt = {"input_ids": torch.tensor([TOKENS]), "attention_mask": mask}
        said = theirs.generate(**prompt, max_new_tokens=24, do_sample=False, pad_token_id=0)
    logits = ours.plain(TOKENS)
    np.testing.assert_allclose(logits, expected, **CLOSE)
    known = list(TOKENS)
    for token in said[0, len(TOKENS) :].tolist():
        last = ours.plain(known)[-1]
        # Another token is one whose logit is as good as the best.
        assert last[token] >= last.max() - 1e-4
        known.append(token)
    assert len(known) == len(TOKENS) + 24


@pytest.mark.parametrize(
    ("dtype", "max_shard_size"), [("float32", "5GB"), ("float32", "10KB"), ("bfloat16", "10KB")]
)
@pytest.mark.parametrize("config", llamas.VARIANTS.values(), ids=llamas.VARIANTS.keys())
def test_we_read_their_checkpoint_and_say_the_same(  # noqa: PLR0917 - fixtures, by name
    torch, transformers, tmp_path, config, dtype, max_shard_size
):
    settings = transformers.LlamaConfig(**llamas.config_json(config))
    torch.manual_seed(5)
    theirs = transformers.LlamaForCausalLM(settings).to(getattr(torch, dtype)).eval()
    theirs.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (max_shard_size == "10KB")
    read = read_config(tmp_path)
    assert read.tensors() == config.tensors()
    assert read.rope.frequencies(8, np).tolist() == config.rope.frequencies(8, np).tolist()
    ours = Llama(read, load_weights(tmp_path, read))
    with torch.no_grad():
        expected = theirs.float()(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(ours.plain(TOKENS), expected, **CLOSE)


def test_text_through_their_tokenizers(tmp_path, capsys):
    tokenizers = importlib.import_module("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(["the quick brown fox", "the lazy dog", "the the the"], trainer)
    size = made.get_vocab_size()
    config = llamas.tiny(vocab_size=size)
    weights = random_weights(config, 1)
    llamas.write_checkpoint(tmp_path, config, weights)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path, config)
    text = "the quick dog é 漢字 \N{PILE OF POO}"
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    stream = TextStream(tokenizer)
    parts = [stream.push(token) for token in tokens]
    assert "".join(parts) + stream.flush() == text
    assert "" in parts, "half a character waits"
    words = ("--model", str(tmp_path), "--prompt", "the quick", "--max-tokens", "8")
    assert main(["generate", *words]) == 0
    said = llamas.plain_tokens(Llama(config, weights), tokenizer.encode("the quick"), 8)
    assert capsys.readouterr().out.rstrip("\n") == tokenizer.decode(said).rstrip("\n")

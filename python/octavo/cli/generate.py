"""`octavo generate`: a model that says something, token by token."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from octavo.cli import options
from octavo.cli.frame import Parser, UsageError

if TYPE_CHECKING:
    from octavo.attention import Backend
    from octavo.model import Engine, Generation, Llama, Sampling, Tokenizer

__all__ = ["add_to"]

_DEVICES = ("cpu", "gpu")
_MADE_PROMPT = 8
_SWEEP = (1, 2, 4, 8, 16, 32, 64)
_SWEEP_PROMPT = 32


def add_to(verbs: Any) -> None:
    """Adds the verb to the command's parser."""
    parser: Parser = verbs.add_parser(
        "generate",
        help="a model says something",
        description="Runs a Llama over NumPy, or over CuPy on a GPU, on the scheduler and paged KV "
        "memory. Without --model its weights are random: token ids go in and come out.",
    )
    parser.set_defaults(run=_run)
    count, number = options.count, options.number
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model", metavar="FOLDER", help="a Hugging Face checkpoint: config.json, safetensors"
    )
    group.add_argument(
        "--dtype",
        metavar="NAME",
        default="float32",
        help="float64, float32, float16 or bfloat16 (float32)",
    )
    group.add_argument(
        "--device", metavar="NAME", default="cpu", help="cpu, or gpu through CuPy (cpu)"
    )
    group = parser.add_argument_group("text")
    group.add_argument("--prompt", metavar="TEXT", help="needs --model and the library tokenizers")
    group.add_argument("--prompt-ids", metavar="N,N", help="the prompt as token ids")
    group.add_argument(
        "--max-tokens", type=count, default=32, metavar="N", help="the most to say (32)"
    )
    group.add_argument("--n", type=count, default=1, metavar="N", help="texts for the prompt (1)")
    group.add_argument(
        "--ignore-eos", action="store_true", help="go on after the model's end of text"
    )
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--seed", type=count, default=0, metavar="N", help="of random weights and of sampling (0)"
    )
    group.add_argument(
        "--temperature", type=number, default=0.0, metavar="X", help="0 takes the likeliest (0)"
    )
    group.add_argument(
        "--top-k", type=count, default=0, metavar="N", help="keep the N likeliest; 0: all (0)"
    )
    group.add_argument(
        "--top-p", type=number, default=1.0, metavar="X", help="keep this probability (1)"
    )
    group = parser.add_argument_group("output")
    group.add_argument(
        "--batch-sweep",
        action="store_true",
        help="print tokens per second for 1 … 64 texts at once instead",
    )
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _run(words: argparse.Namespace) -> int:
    from octavo.model import Sampling  # noqa: PLC0415 - NumPy is slow to start, a simulation is not

    if words.prompt is not None and words.prompt_ids is not None:
        raise UsageError("--prompt and --prompt-ids: one of them")
    if words.prompt is not None and words.model is None:
        raise UsageError("--prompt needs --model: random weights know no words")
    sampling = Sampling(words.temperature, words.top_k, words.top_p, words.seed)
    if words.device not in _DEVICES:
        raise UsageError(f"--device {words.device}: one of {', '.join(_DEVICES)}")
    if words.batch_sweep:
        return _sweep(words, *_model(words))
    if words.model is not None and words.prompt is None and words.prompt_ids is None:
        raise UsageError("say --prompt or --prompt-ids")
    return _generate(words, *_model(words), sampling)


def _model(words: argparse.Namespace) -> tuple[Llama, Backend]:
    """The model, and what attends for it on the same device."""
    from octavo.attention import gpu, reference  # noqa: PLC0415 - as above
    from octavo.model import (  # noqa: PLC0415 - as above
        Llama,
        LlamaConfig,
        load_weights,
        random_weights,
        read_config,
    )

    backend: Backend = reference
    options: dict[str, Any] = {"dtype": words.dtype}
    if words.device == "gpu":
        kernels = gpu.backend()
        backend, options["xp"] = kernels, kernels.launcher.xp
    if words.model is not None:
        config = read_config(words.model)
        return Llama(config, load_weights(words.model, config), **options), backend
    config = LlamaConfig.small()
    return Llama(config, random_weights(config, words.seed), **options), backend


def _generate(words: argparse.Namespace, model: Llama, backend: Backend, sampling: Sampling) -> int:
    from octavo.model import Engine, Tokenizer  # noqa: PLC0415 - as above

    tokenizer = Tokenizer(words.model, model.config) if words.prompt is not None else None
    prompt = _prompt(words, model, tokenizer)
    block_size = 16
    blocks = words.n * -(-(len(prompt) + words.max_tokens) // block_size)
    engine = Engine(
        model,
        num_blocks=blocks + 1,
        block_size=block_size,
        backend=backend,
        max_num_seqs=max(words.n, 1),
    )
    stops = () if words.ignore_eos else model.config.eos_token_ids
    start = time.monotonic()
    generation = engine.add(
        prompt, max_tokens=words.max_tokens, sampling=sampling, n=words.n, stop_token_ids=stops
    )
    _print(engine, generation, tokenizer)
    seconds = time.monotonic() - start
    said = sum(map(len, generation.tokens))
    print(
        f"{said} tokens in {seconds:.2f} s, {said / seconds:.1f} tokens/s; "
        f"{model.config.num_parameters:,} parameters, {model.dtype}",
        file=sys.stderr,
    )
    return 0


def _prompt(words: argparse.Namespace, model: Llama, tokenizer: Tokenizer | None) -> list[int]:
    if tokenizer is not None:
        return tokenizer.encode(words.prompt)
    if words.prompt_ids is None:
        from octavo.model import uniform  # noqa: PLC0415 - as above

        numbers = uniform([words.seed] * _MADE_PROMPT, range(_MADE_PROMPT))
        return [int(number * model.config.vocab_size) for number in numbers]
    try:
        return [int(word) for word in words.prompt_ids.split(",")]
    except ValueError:
        raise UsageError(f"--prompt-ids {words.prompt_ids}: whole numbers, as 1,2,3") from None


def _print(engine: Engine, generation: Generation, tokenizer: Tokenizer | None) -> None:
    """A single text as it grows; several one after the other, a line each, when all have ended."""
    if len(generation.seqs) > 1:
        for _ in engine.stream(generation):
            pass
        for tokens in generation.tokens:
            ids = " ".join(map(str, tokens))
            print(ids if tokenizer is None else tokenizer.decode(tokens))
        return
    if tokenizer is None:
        for place, (_, token) in enumerate(engine.stream(generation)):
            print(f" {token}" if place else token, end="", flush=True)
    else:
        from octavo.model import TextStream  # noqa: PLC0415 - as above

        text = TextStream(tokenizer)
        for _, token in engine.stream(generation):
            print(text.push(token), end="", flush=True)
        print(text.flush(), end="")
    print()


def _sweep(words: argparse.Namespace, model: Llama, backend: Backend) -> int:
    from octavo.model.sweep import batch_sweep  # noqa: PLC0415 - as above

    if words.max_tokens < 2:
        raise UsageError(f"--max-tokens {words.max_tokens}: a sweep decodes at least 2")
    print(f"{model.config.num_parameters:,} parameters, {model.dtype}", file=sys.stderr)
    print(f"{'batch':>5}  {'tokens/s':>10}  {'ms/step':>9}  {'x':>6}", flush=True)
    first = None
    points = batch_sweep(
        model,
        _SWEEP,
        prompt_tokens=_SWEEP_PROMPT,
        max_tokens=words.max_tokens,
        seed=words.seed,
        backend=backend,
    )
    for point in points:
        first = first or point.tokens_per_s
        share = point.tokens_per_s / first
        print(
            f"{point.batch:>5}  {point.tokens_per_s:>10,.1f}  {point.step_ms:>9.2f}  {share:>6.2f}",
            flush=True,
        )
    return 0

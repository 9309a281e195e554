"""The engine: whatever the schedule, the tokens are those of the plain model."""

import numpy as np
import pytest

import octavo
from octavo.attention import reference
from octavo.model import Engine, Sampling
from support import llamas

MODEL = llamas.model(llamas.tiny())
SMALL = {"num_blocks": 14, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 16}


def engine(**changes):
    made = Engine(MODEL, **(SMALL | {"watermark": 0.0} | changes))
    reference.poison_all(made.kv)
    return made


def requests(seed, count=10, most=3):
    """Prompts that share beginnings, with n 1 … most, half of them greedy."""
    draws = np.random.default_rng(seed)
    shared = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    for place in range(count):
        head = shared[: draws.integers(1, 10)]
        prompt = head + draws.integers(50, size=draws.integers(1, 6)).tolist()
        temperature = float(place % 2)
        sampling = Sampling(temperature, top_k=place % 3 * 5, top_p=0.9, seed=place)
        yield prompt, sampling, 1 + place % most


@pytest.mark.parametrize("inflight_steps", [1, 2, 4])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("num_blocks", [14, 60])
@pytest.mark.parametrize("batching", ["chunked", "continuous"])
def test_tokens_are_those_of_the_plain_model(inflight_steps, layout, num_blocks, batching):
    whole = {} if batching == "chunked" else {"max_num_batched_tokens": 64, "max_model_len": 64}
    made = engine(
        inflight_steps=inflight_steps,
        layout=layout,
        num_blocks=num_blocks,
        batching=batching,
        **whole,
    )
    added = [
        (prompt, sampling, made.add(prompt, max_tokens=12, sampling=sampling, n=n))
        for prompt, sampling, n in requests(3)
    ]
    made.run()
    for prompt, sampling, generation in added:
        assert generation.is_done
        assert set(generation.reasons) == {octavo.Reason.LENGTH}
        for index, tokens in enumerate(generation.tokens):
            assert tokens == llamas.plain_tokens(MODEL, prompt, 12, sampling.of(index))
    stats = made.scheduler.stats()
    if num_blocks == 14:
        assert stats.preemptions > 0
    assert stats.prefix_hits > 0
    assert stats.copies > 0, "a tail that is shared was written"
    assert not made._running


def test_stream_tells_tokens_as_they_come():
    made = engine(num_blocks=60)
    other = made.add([9, 9], max_tokens=30)
    generation = made.add([1, 2, 3], max_tokens=5, n=2, sampling=Sampling(1.0))
    told = list(made.stream(generation))
    for index in range(2):
        assert [token for of, token in told if of == index] == generation.tokens[index]
    assert len(told) == 10
    assert not other.is_done
    assert other.tokens[0]
    assert list(made.stream(generation)) == [(i, t) for i in (0, 1) for t in generation.tokens[i]]


def test_stops_and_aborts_end_a_request():
    plain = llamas.plain_tokens(MODEL, [1, 2, 3], 12)
    made = engine(num_blocks=60, inflight_steps=2)
    stopped = made.add([1, 2, 3], max_tokens=12, stop_token_ids=[plain[4]])
    aborted = made.add([1, 2, 3], max_tokens=12)
    made.step()
    made.abort(aborted)
    made.run()
    made.abort(aborted)
    assert stopped.tokens[0] == plain[: plain.index(plain[4]) + 1]
    assert stopped.reasons == [octavo.Reason.STOP]
    assert aborted.reasons == [octavo.Reason.ABORTED]
    assert aborted.tokens[0] == plain[: len(aborted.tokens[0])]
    assert made.step() is None


def test_a_pass_that_fails_is_cancelled_and_done_again():
    class Failing:
        calls = 0

        def __getattr__(self, name):
            if name == "prefill":
                self.calls += 1
                if self.calls == 3:
                    message = "the card fell off the bus"
                    raise RuntimeError(message)
            return getattr(reference, name)

    made = engine(num_blocks=60, inflight_steps=2, backend=Failing())
    generation = made.add(range(20), max_tokens=6)
    with pytest.raises(RuntimeError, match="fell off"):
        made.run()
    made.run()
    assert generation.tokens[0] == llamas.plain_tokens(MODEL, range(20), 6)
    made.scheduler.audit()


def test_a_nan_in_memory_is_an_error_and_no_token():
    made = engine(num_blocks=60)
    made.add([1, 2, 3], max_tokens=5)
    made.step()
    reference.poison_all(made.kv)
    with pytest.raises(octavo.RequestError, match="logits: row 0 has NaN"):
        made.step()


def test_what_cannot_run_is_refused_or_told():
    made = engine(num_blocks=60)
    with pytest.raises(octavo.RequestError, match="prompt: 50 is no token of a vocabulary of 50"):
        made.add([1, 50], max_tokens=1)
    with pytest.raises(octavo.RequestError, match="prompt"):
        made.add([], max_tokens=1)
    asleep = made.add([1], max_tokens=1, ready=False)
    with pytest.raises(octavo.StateError, match="nothing can run"):
        next(made.stream(asleep))
    with pytest.raises(octavo.ConfigError, match="inflight_steps"):
        engine(inflight_steps=5)
    assert made.scheduler.stats().requests == 1

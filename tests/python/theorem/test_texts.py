"""What the theorem compares with: the tie rule lets a tie pass, and nothing else."""

import numpy as np
import pytest

from octavo import Reason
from octavo.model import Sampling
from support.texts import Plain, Text

TIE = 1e-4


class Fixed:
    """A model whose logits are always the same: the second token leads, the last is as good."""

    logits = np.array([[0.0, 2.0, 2.0 - 2e-4, 2.0 - 5e-5]])

    def plain(self, known):
        return self.logits


def text(tie, sampling=None, **changes):
    return Text(Plain(Fixed(), tie), 0, [0], sampling or Sampling(), 3, **changes)


def test_in_float32_a_tie_may_go_either_way_and_is_counted():
    one = text(TIE)
    one.say([1, 3, 1])
    assert one.said == [1, 3, 1]
    assert one.plain.ties == 1


def test_who_says_another_token_goes_on_from_it():
    asked = []
    one = text(TIE)
    one.plain.model.plain = lambda known: asked.append(known) or Fixed.logits
    one.say([3, 1])
    assert asked == [(0,), (0, 3)]


@pytest.mark.parametrize(
    ("tie", "sampling", "token"),
    [
        (TIE, Sampling(), 2),  # twice as far as a tie reaches
        (TIE, Sampling(), 0),
        (TIE, Sampling(), 4),  # no token
        (TIE, Sampling(), -1),  # nor the last one by another name
        (TIE, Sampling(temperature=1e-9), 3),  # drawn
        (None, Sampling(), 3),  # in float64
    ],
)
def test_another_token_without_a_tie_is_refused(tie, sampling, token):
    one = text(tie, sampling)
    with pytest.raises(AssertionError, match="not the plain model's token"):
        one.say([1, token])
    assert one.said == [1]
    assert one.plain.ties == 0


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([1, 1], Reason.LENGTH),  # one less than its limit
        ([1, 1, 1, 1], Reason.LENGTH),
        ([1, 1, 1, 1], Reason.ABORTED),
        ([1], Reason.STOP),  # before it may stop
    ],
)
def test_an_end_that_is_not_due_is_refused(said, reason):
    one = text(None, stops=(1,), min_tokens=2) if reason is Reason.STOP else text(None)
    one.say(said)
    with pytest.raises(AssertionError):
        one.end(reason)


def test_stop_is_not_told_as_length_and_nothing_follows_it():
    one = text(None, stops=(1,))
    one.say([1, 1, 1])
    with pytest.raises(AssertionError):
        one.end(Reason.LENGTH)
    one = text(None, stops=(1,))
    one.say([1])
    one.end(Reason.STOP)
    with pytest.raises(AssertionError, match="after the end"):
        one.say([1])
    with pytest.raises(AssertionError, match="told once"):
        one.end(Reason.STOP)

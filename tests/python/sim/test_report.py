import pytest

from octavo.cli import frame
from octavo.sim import plain, simulate
from octavo.sim.report import table


def test_table_of_nothing_served_has_dashes():
    report = simulate(plain(3, input_len=65, output_len=2), num_blocks=4).report
    text = table(report)
    assert "0 of 3 completed, 3 rejected: the prompt can never fit" in text
    assert text.count(" - ") >= 5 * 5
    assert "goodput" not in text


def test_table_tells_who_outgrew_the_pool():
    report = simulate(plain(1, input_len=10, output_len=9), num_blocks=1).report
    assert "0 of 1 completed, 1 ended for lack of capacity" in table(report)


def test_table_is_aligned_and_marks_few_values():
    lines = table(simulate(plain(3, input_len=10, output_len=9)).report).splitlines()
    head = next(line for line in lines if line.startswith("ms"))
    ends = [head.index(name) + len(name) for name in ("mean", "p50", "p90", "min", "max")]
    rows = [line for line in lines if line.startswith(("ttft", "tpot", "itl", "max gap", "e2e"))]
    assert len(rows) == 5
    for row in rows:
        assert all(row[end - 1].isdigit() and row[end] == " " for end in ends)
        assert "*" in row


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(frame.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_late_rare_and_for_people_only(clock, capsys, monkeypatch, is_terminal):
    monkeypatch.setattr(frame.sys.stderr, "isatty", lambda: is_terminal, raising=False)
    progress = frame.ProgressLine()
    shown = []
    for now in (100.9, 101.0, 101.4, 101.5, 103.0):
        clock[0] = now
        progress(7.0, 2_000, 3, 5)
        shown.append(capsys.readouterr().err)
    line = "\r3 of 5 requests, 2,000 passes, virtual 7 s\033[K"
    assert shown == (["", line, "", line, line] if is_terminal else [""] * 5)
    assert progress.close() == 3.0
    assert capsys.readouterr().err == ("\r\033[K" if is_terminal else "")

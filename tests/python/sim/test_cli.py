import json
import os
import signal
import subprocess
import sys

import pytest

import octavo as octavo_package
from octavo.cli import main

FEW = ("--num-requests", "20", "--input-len", "40", "--output-len", "6")


def start(*words, **settings):
    command = [sys.executable, "-m", "octavo.cli", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings)


def test_no_flags_run_the_festival(octavo):
    code, out, err = octavo("simulate", "--limit", "400")
    assert code == 0
    assert "400 of 400 completed" in out
    assert "26,702 blocks of 16 tokens" in out
    assert "simulated 400 requests in" in err
    assert "simulated" not in out


def test_table_prints_the_formulas_and_marks_a_99th_percentile_of_few(octavo):
    _, out, _ = octavo("simulate", *FEW, "--goodput", "ttft:500", "tpot:50")
    for formula in ("first token - arrival", "(last - first) / (n - 1)", "last token - arrival"):
        assert formula in out
    assert "* fewer than 1,000 values" in out
    assert "kept every promise" in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_json_alone_on_standard_output_is_the_same_twice(octavo):
    one, two = (octavo("simulate", *FEW, "--json", "-") for _ in range(2))
    assert one[:2] == two[:2]
    report = json.loads(one[1])
    assert report["summary"]["completed"] == 20


def test_csv_and_trace_are_written_and_a_replay_is_the_same(octavo, tmp_path):
    paths = {name: tmp_path / name for name in ("a.json", "a.csv", "t.csv", "b.json", "b.csv")}
    rate = ("--request-rate", "7.3", "--seed", "11")
    words = ("--json", paths["a.json"], "--csv", paths["a.csv"], "--export-trace", paths["t.csv"])
    assert octavo("simulate", *FEW, *rate, *words)[0] == 0
    words = ("--trace", paths["t.csv"], "--json", paths["b.json"], "--csv", paths["b.csv"])
    code, _, err = octavo("simulate", *words)
    assert code == 0
    assert "t.csv: Octavo CSV: times are seconds" in err
    assert paths["a.json"].read_bytes() == paths["b.json"].read_bytes()
    assert paths["a.csv"].read_bytes() == paths["b.csv"].read_bytes()


def test_time_scale_and_limit_change_the_traffic(octavo, written):
    path = written("arrival_s,prompt_tokens,output_tokens\n10,8,2\n20,8,2\n30,8,2\n")
    _, out, _ = octavo(
        "simulate", "--trace", path, "--time-scale", "0.5", "--limit", "2", "--export-trace", "-"
    )
    assert out == "arrival_s,prompt_tokens,output_tokens\n5.0,8,2\n10.0,8,2\n"


def test_numbers_of_the_cost_model_reach_the_run(octavo):
    words = ("--input-len", "1000", "--output-len", "1", "--num-requests", "1", "--json", "-")
    _, out, _ = octavo("simulate", *words)
    # 1,000 · 16e9 / 150e12 + 0.003
    assert json.loads(out)["summary"]["ttft_s"]["max"] == 1_000 * 16e9 / 150e12 + 0.003
    _, out, _ = octavo(
        "simulate",
        *words,
        "--overhead",
        "0.5",
        "--flop-per-token",
        "0",
        "--weight-bytes",
        "0",
        "--kv-bytes-per-token",
        "2e9",
        "--num-blocks",
        "100",
        "--combine",
        "sum",
    )
    # 1,000 · 2e9 / 2e12 + 0.5
    assert json.loads(out)["summary"]["ttft_s"]["max"] == 1.5
    _, out, _ = octavo("simulate", *words, "--block-size", "1300")
    assert out == ""
    _, out, _ = octavo("simulate", *words, "--memory", "30e9", "--no-prefix-caching")
    config = json.loads(out)["config"]
    assert config["num_blocks"] == int(6e9 // (131_072 * 16))
    assert config["prefix_caching"] is False


SLOTS = ("useful_slot_steps", "padded_slot_steps", "idle_slot_steps")


def test_every_batching_runs_and_only_static_pads(octavo):
    words = (*FEW, "--request-rate", "50", "--max-num-seqs", "4", "--json", "-", "--batching")
    slots = {}
    for batching in ("serial", "static", "continuous", "mixed", "chunked"):
        code, out, _ = octavo("simulate", *words, batching)
        report = json.loads(out)
        assert (code, report["config"]["batching"]) == (0, batching)
        assert report["config"]["max_num_seqs"] == (1 if batching == "serial" else 4)
        assert report["summary"]["useful_slot_steps"] == 20 * 5
        slots[batching] = [report["summary"][name] for name in SLOTS]
    assert slots["serial"] == [100, 0, 0]
    # Equal lengths end together, so that even a static batch has nothing to pad.
    assert {padded for _, padded, _ in slots.values()} == {0}
    assert report["config"]["max_num_batched_tokens"] == 2_048


def test_static_pads_what_differs_and_can_wait(octavo, written):
    rows = "".join(f"{i},8,{length}\n" for i, length in enumerate((10, 500, 2)))
    path = written("arrival_s,prompt_tokens,output_tokens\n" + rows)
    words = ("--trace", path, "--time-scale", "0", "--max-num-seqs", "2", "--json", "-")
    words = ("simulate", *words, "--batching", "static")
    _, out, _ = octavo(*words)
    summary = json.loads(out)["summary"]
    assert (summary["padded_slot_steps"], summary["useful_slot_steps"]) == (490, 9 + 499 + 1)
    _, out, _ = octavo(*words, "--wait-for-full")
    waited = json.loads(out)
    assert waited["config"]["wait_for_full"] is True
    assert waited["summary"] == summary


WRONG = {
    "no verb": ((), "say what to do"),
    "unknown verb": (("fly",), "invalid choice: 'fly'"),
    "later verb": (("plan",), "plan comes later"),
    "unknown flag": (("simulate", "--sped", "3"), "--sped is no flag of this verb"),
    "abbreviated flag": (("simulate", "--input", "3"), "--input is no flag of this verb"),
    "later flag": (("simulate", "--router=x"), "--router comes later"),
    "unknown batching": (("simulate", "--batching", "big"), "one of serial, static"),
    "later policy": (("simulate", "--policy", "edf"), "the others come later"),
    "no number": (("simulate", "--memory", "much"), "--memory: 'much' is not a number"),
    "no count": (("simulate", "--limit", "1.5"), "--limit: '1.5' is not a whole number"),
    "no request": (("simulate", "--limit", "0"), "at least one request"),
    "block size": (("simulate", "--block-size", "0"), "a whole number, 1 … 256"),
    "seed": (("simulate", "--seed", "-1"), "seed"),
    "requests": (("simulate", "--num-requests", "0"), "num_requests"),
    "rate": (("simulate", "--request-rate", "0"), "above 0, or inf"),
    "length": (("simulate", "--input-len", "-4"), "input_len"),
    "distribution": (("simulate", "--output-len", "normal:3:1"), "uniform:LEAST:MOST"),
    "burstiness": (("simulate", "--burstiness", "0"), "burstiness"),
    "users": (("simulate", "--concurrency", "0"), "concurrency"),
    "loop at a rate": (
        ("simulate", "--concurrency", "2", "--request-rate", "3"), "--request-rate paces arrivals"
    ),
    "trace of a loop": (
        ("simulate", "--concurrency", "2", "--export-trace", "x.csv"), "arrivals are results"
    ),
    "preset": (("simulate", "--preset", "exam"), "one of lesson"),
    "list in simulate": (("simulate", "--batching", "static,mixed"), "one of serial, static"),
    "no list": (("compare", "--batching", "static,"), "one of serial, static"),
    "scale": (("simulate", "--time-scale", "-1"), "--time-scale -1.0: a finite number"),
    "memory": (("simulate", "--memory", "1e9"), "room for 1 … 2^31-1 KV blocks"),
    "promise": (("simulate", "--goodput", "speed:3"), "expected one of ttft, tpot, e2e"),
    "promise in words": (("simulate", "--goodput", "ttft:fast"), "'fast' is not a number of ms"),
    "two outputs": (("simulate", "--json", "-", "--csv", "-"), "--json - and --csv - cannot share"),
    "trace and rate": (
        ("simulate", "--trace", "x.csv", "--request-rate", "3"), "--request-rate makes traffic"
    ),
    "no file": (("simulate", "--trace", "none.csv"), "No such file or directory: 'none.csv'"),
    "no folder": (("simulate", *FEW, "--json", "none/x.json"), "No such file or directory"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "reason"), WRONG.values(), ids=WRONG.keys())
def test_mistakes_are_one_line_and_exit_code_2(octavo, words, reason):
    code, out, err = octavo(*words)
    assert (code, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("octavo: error: ")
    assert reason in last
    assert "Traceback" not in err


def test_bad_trace_names_file_line_and_reason(octavo, written):
    path = written("arrival_s,prompt_tokens,output_tokens\n1,2,3\n2,0,3\n", "rush.csv")
    code, out, err = octavo("simulate", "--trace", path)
    assert (code, out) == (2, "")
    assert err == "octavo: error: rush.csv, line 3: prompt_tokens is 0, not in 1 … 2^30\n"
    code, out, err = octavo("simulate", "--trace", path, "--skip-bad-rows")
    assert code == 0
    assert "1 rows dropped, the first: rush.csv, line 3" in err


def test_debug_shows_the_traceback(octavo):
    with pytest.raises(FileNotFoundError):
        octavo("simulate", "--trace", "none.csv", "--debug")


def test_help_lists_every_flag_and_its_default(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["simulate", "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for flag in ("--trace", "--request-rate", "--max-num-seqs", "--goodput", "--export-trace"):
        assert flag in text
    assert "(2048)" in text


def test_version_is_the_package_s(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"octavo {octavo_package.__version__}\n"


@pytest.mark.usefixtures("listening")
def test_ctrl_c_ends_with_130(tmp_path):
    # The command waits in the middle of its trace, so that the signal finds it at work.
    pipe = tmp_path / "trace.csv"
    os.mkfifo(pipe)
    process = start("simulate", "--trace", str(pipe))
    with pipe.open("w", encoding="utf-8"):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"octavo: interrupted\n")


def test_nobody_reading_the_output_is_no_error():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "octavo.cli", "simulate", *FEW, "--csv", "-"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr
    assert b"Error" not in done.stderr


def test_simulating_imports_no_numpy():
    code = (
        "import sys; from octavo.cli import main; code = main(sys.argv[1:]); "
        "print(code, sorted({'numpy', 'hypothesis', 'asyncio'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, "simulate", *FEW]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"

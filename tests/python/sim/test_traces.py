import json

import pytest

from octavo.errors import OctavoError, TraceError
from octavo.sim import read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
OWN = "arrival_s,prompt_tokens,output_tokens\n"
HASHED = "arrival_s,prompt_tokens,output_tokens,hash_block_tokens,hash_ids\n"
PREFIXED = "arrival_s,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n"


def mooncake(**changes):
    row = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]} | changes
    return json.dumps({name: value for name, value in row.items() if value is not None}) + "\n"


def columns(trace):
    return list(trace.arrival_s), list(trace.prompt_tokens), list(trace.output_tokens)


def test_azure_times_are_seconds_since_the_first_row(written):
    # Seven fractional digits, CRLF, midnight in between, no final newline.
    path = written(
        AZURE + "2023-11-16 23:59:59.9799600,4808,10\r\n2023-11-17 00:00:01.0000000,3180,8"
    )
    trace = read_trace(path)
    assert columns(trace) == ([0.0, 1.02004], [4808, 3180], [10, 8])
    assert trace.notes == [
        "Azure LLM inference CSV: times are seconds since the first row, rows share no prefix"
    ]


def test_mooncake_times_are_milliseconds_and_ids_name_512_tokens(written):
    path = written(mooncake() + mooncake(timestamp=1500, hash_ids=[0, 2]), "m.jsonl")
    trace = read_trace(path)
    assert columns(trace) == ([0.0, 1.5], [600, 600], [5, 5])
    assert (list(trace.prefix_ids), list(trace.hash_ends)) == ([0, 1, 0, 2], [2, 4])
    assert trace.block_tokens == 512
    assert "milliseconds" in trace.notes[0]
    assert "512" in trace.notes[0]


def test_own_csv_reads_prefixes_and_says_what_it_does_not_use(written):
    header = "arrival_s,prompt_tokens,output_tokens,session,prefix_id,prefix_tokens,tenant\n"
    trace = read_trace(
        written(header + "0.5,10,3,s1,bot,4,a\n1e0,10,3,s1,,,a\n2,10,3,s2,bot,5,b\n")
    )
    assert columns(trace) == ([0.5, 1.0, 2.0], [10] * 3, [3] * 3)
    assert list(trace.prefix_ids) == [0, 0, 0]
    assert list(trace.prefix_tokens) == [4, 0, 5]
    assert trace.notes == ["Octavo CSV: times are seconds", "columns not used: session, tenant"]


def test_own_csv_reads_hash_ids(written):
    trace = read_trace(written(HASHED + "0,10,3,8,5 -6\n1,10,3,8,\n"))
    assert (list(trace.prefix_ids), list(trace.hash_ends)) == ([5, -6], [2, 2])
    assert trace.block_tokens == 8


def test_byte_order_mark_and_blank_lines_are_no_rows(written):
    assert columns(read_trace(written("\ufeff" + OWN + "\n1,2,3\n\n"))) == ([1.0], [2], [3])


BROKEN = {
    "missing column": (AZURE.replace(",GeneratedTokens", ""), 1, "has no column GeneratedTokens"),
    "unknown columns": ("a,b\n1,2\n", 1, "has columns of no known trace: a,b"),
    "doubled column": (OWN.strip() + ",arrival_s\n", 1, "a column stands twice"),
    "empty file": ("", None, "has no header"),
    "no rows": (OWN, None, "has no request"),
    "negative time": (OWN + "-1,2,3\n", 2, "arrival_s is -1, not a finite time"),
    "infinite time": (OWN + "inf,2,3\n", 2, "arrival_s is inf, not a finite time"),
    "no time": (OWN + "nan,2,3\n", 2, "arrival_s is nan, not a finite time"),
    "time in words": (OWN + "1,2,3\nsoon,2,3\n", 3, "arrival_s is 'soon', not a number"),
    "underscored time": (OWN + "1_0,2,3\n", 2, "arrival_s is '1_0', not a number"),
    "zero prompt": (OWN + "1,0,3\n", 2, "prompt_tokens is 0, not in 1 … 2^30"),
    "zero output": (OWN + "1,2,0\n", 2, "output_tokens is 0"),
    "endless digits": (OWN + f"1,{'9' * 5000},3\n", 2, "prompt_tokens is '999"),
    "mooncake huge time": (mooncake(timestamp=10**400), 1, "not a finite time"),
    "mooncake timestamp text": (mooncake(timestamp=[]), 1, "timestamp is [], not a number"),
    "deep": (mooncake() + "[" * 200_000 + "\n", 2, "is no JSON"),
    "too long": (OWN + "1,2147483648,3\n", 2, "prompt_tokens is 2147483648"),
    "negative length": (OWN + "1,2,-3\n", 2, "output_tokens is '-3', not a whole number"),
    "fraction of a token": (OWN + "1,2.5,3\n", 2, "prompt_tokens is '2.5', not a whole number"),
    "foreign digits": (OWN + "1,٢,3\n", 2, "prompt_tokens is '٢', not a whole number"),
    "broken last line": (OWN + "1,2,3\n2,4", 3, "has 2 values for 3 columns"),
    "too many values": (OWN + "1,2,3,4\n", 2, "has 4 values for 3 columns"),
    "open quote": (OWN + '1,2,3\n"1,2,3\n', 3, "unexpected end of data"),
    "azure date": (AZURE + "yesterday,4,1\r\n", 2, "TIMESTAMP is 'yesterday', not a date"),
    "azure broken date": (AZURE + "2023-11-16 19:1,4,1\r\n", 2, "TIMESTAMP is '2023-11-16 19:1'"),
    "azure no such day": (AZURE + "2023-02-30 19:10:00.0,4,1\r\n", 2, "no such day"),
    "azure no such hour": (AZURE + "2023-02-20 25:10:00.0,4,1\r\n", 2, "no such time of day"),
    "azure before the first": (
        AZURE + "2023-11-16 19:10:00.0,4,1\r\n2023-11-16 19:09:59.9,4,1\r\n",
        3,
        "is before the first row's",
    ),
    "mooncake missing": (mooncake() + mooncake(output_length=None), 2, "has no output_length"),
    "mooncake first row": (mooncake(hash_ids=None), 1, "has no column hash_ids"),
    "mooncake negative": (mooncake(timestamp=-1), 1, "timestamp is -1, not a finite time"),
    "mooncake bool": (mooncake(input_length=True), 1, "input_length is True, not a whole number"),
    "mooncake text": (mooncake(timestamp="soon"), 1, "timestamp is 'soon', not a number"),
    "mooncake float length": (mooncake(input_length=6.0), 1, "input_length is 6.0"),
    "mooncake zero": (mooncake(output_length=0), 1, "output_length is 0"),
    "mooncake ids": (mooncake(hash_ids=7), 1, "hash_ids is 7, not a list"),
    "mooncake id": (mooncake(hash_ids=["a"]), 1, "hash_ids are not all whole numbers"),
    "mooncake huge id": (mooncake(hash_ids=[1 << 70]), 1, "hash_ids are not all whole numbers"),
    "mooncake too many": (mooncake(hash_ids=[1, 2, 3]), 1, "has 3 hash_ids for 2 blocks of 512"),
    "mooncake broken last line": (mooncake() + mooncake()[:40], 2, "is no JSON"),
    "mooncake list": (mooncake() + "[1]\n", 2, "is no JSON object"),
    "first line broken": ('{"timestamp"', 1, "is no JSON"),
    "prefix without tokens": (
        OWN.strip() + ",prefix_id\n1,2,3,a\n", 1, "has prefix_id but no prefix_tokens"
    ),
    "hashes without block": (
        OWN.strip() + ",hash_ids\n1,2,3,4\n", 1, "has hash_ids but no hash_block_tokens"
    ),
    "both": (HASHED.strip() + ",prefix_id,prefix_tokens\n", 1, "has prefix_id and hash_ids"),
    "prefix too long": (PREFIXED + "1,2,3,a,9\n", 2, "prefix_tokens is 9, more than"),
    "prefix without name": (PREFIXED + "1,2,3,,1\n", 2, "prefix_id is empty"),
    "prefix without length": (PREFIXED + "1,2,3,a,\n", 2, "prefix_tokens is '', not a whole"),
    "hash words": (HASHED + "1,9,3,8,a b\n", 2, "hash_ids are not whole numbers"),
    "two block sizes": (HASHED + "1,9,3,8,1\n2,9,3,4,1\n", 3, "blocks of 4 tokens after blocks"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_bad_trace_is_refused_with_file_line_and_reason(written, text, line, reason):
    with pytest.raises(TraceError) as caught:
        read_trace(written(text, "rush.csv"))
    assert isinstance(caught.value, OctavoError)
    assert (caught.value.file, caught.value.line) == ("rush.csv", line)
    assert reason in caught.value.reason
    assert str(caught.value).startswith("rush.csv")


LATER = {
    "Qwen": '{"chat_id": 1, "timestamp": 0.1, "input_length": 3, "output_length": 2}\n',
    "BurstGPT": "Timestamp,Model,Request tokens,Response tokens\n",
    "Vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n",
    "Splitwise": "arrival_timestamp,prompt_size,token_size\n",
}


@pytest.mark.parametrize(("name", "text"), LATER.items())
def test_formats_that_come_later_are_refused_by_name(written, name, text):
    with pytest.raises(TraceError, match=f"{name}.*comes later"):
        read_trace(written(text))


def test_skipped_rows_are_counted_and_said(written):
    path = written(OWN + "1,2,3\n-1,2,3\n2,0,3\n3,4,5\n4,5")
    trace = read_trace(path, skip_bad_rows=True)
    assert columns(trace) == ([1.0, 3.0], [2, 4], [3, 5])
    assert trace.dropped == 3
    assert trace.notes[-1].startswith(
        "3 rows dropped, the first: trace.csv, line 3: arrival_s is -1"
    )


def test_skipping_leaves_nothing_of_a_row_behind(written):
    rows = mooncake() + mooncake(output_length=0, hash_ids=[7]) + mooncake(hash_ids=[8])
    trace = read_trace(written(rows, "m.jsonl"), skip_bad_rows=True)
    assert (list(trace.prefix_ids), list(trace.hash_ends)) == ([0, 1, 8], [2, 3])
    rows = mooncake() + mooncake(timestamp=-5, hash_ids=[7])
    trace = read_trace(written(rows, "m.jsonl"), skip_bad_rows=True)
    assert list(trace.prefix_ids) == [0, 1]


def test_skipping_all_rows_leaves_an_error(written):
    with pytest.raises(TraceError, match="has no request"):
        read_trace(written(OWN + "-1,2,3\n"), skip_bad_rows=True)


def test_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none.csv")

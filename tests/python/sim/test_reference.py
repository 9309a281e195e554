"""The loop again, in plain Python around the public `octavo.Scheduler`: same times, to the bit."""

import pytest

import octavo
from octavo.sim import read_trace, simulate

BUDGET, ROWS, BLOCK = 24, 4, 4
HEADER = "arrival_s,prompt_tokens,output_tokens,hash_block_tokens,hash_ids\n"
COST = {
    "weight_bytes": 3e9, "kv_bytes_per_token": 7e5, "bandwidth": 1.7e12, "flop_per_token": 9e9,
    "peak_flops": 2e13, "overhead": 0.0021,
}  # fmt: skip


def pass_seconds(tokens, kv_tokens):
    memory = (COST["weight_bytes"] + kv_tokens * COST["kv_bytes_per_token"]) / COST["bandwidth"]
    compute = tokens * COST["flop_per_token"] / COST["peak_flops"]
    return max(memory, compute) + COST["overhead"]


def requests():
    """(arrival, prompt length, output length, hash ids of 8 tokens each)."""
    return [
        (0.011 * (i // 3), 9 + 7 * i % 31, 1 + 5 * i % 17, [i % 3, 10 + i % 2][: 1 + i % 2])
        for i in range(45)
    ]


def reference(num_blocks):
    """All token times by request, and all pass ends."""
    rows = requests()
    longest = max(prompt + output for _, prompt, output, _ in rows)
    scheduler = octavo.Scheduler(
        num_blocks, block_size=BLOCK, max_num_seqs=ROWS, max_num_batched_tokens=BUDGET,
        max_model_len=longest,
    )  # fmt: skip
    waiting = sorted(range(len(rows)), key=lambda i: (rows[i][0], i))
    times, ends, owner = {i: [] for i in waiting}, [], {}
    now = 0.0
    while waiting or scheduler.has_work:
        while waiting and rows[waiting[0]][0] <= now:
            i = waiting.pop(0)
            arrival, prompt, _, ids = rows[i]
            named = [token for name in ids for token in [name] * 8][:prompt]
            tokens = named + [1_000 + i] * (prompt - len(named))
            request = scheduler.add(tokens, max_tokens=longest - prompt, arrival=arrival)
            owner[scheduler.sequences(request)[0]] = i
        plan = scheduler.step(now)
        if plan is None:
            if not waiting:
                break
            now = max(now, rows[waiting[0]][0])
            continue
        if len(plan.seqs):
            now += pass_seconds(int(plan.num_tokens.sum()), int(plan.seq_lens.sum()))
            ends.append(now)
        emitted = [owner[seq] for seq in plan.sample_seqs.tolist()]
        for seq, _ in scheduler.commit(plan, [1_000 + i for i in emitted]):
            times[owner[seq]].append(now)
            if len(times[owner[seq]]) == rows[owner[seq]][2]:
                scheduler.finish(seq)
    return times, ends, scheduler.stats()


@pytest.mark.parametrize("num_blocks", [400, 14])
def test_simulation_is_the_scheduler_in_virtual_time(written, num_blocks):
    lines = (
        f"{arrival!r},{prompt},{output},8,{' '.join(map(str, ids))}\n"
        for arrival, prompt, output, ids in requests()
    )
    workload = read_trace(written(HEADER + "".join(lines))).workload()
    run = simulate(
        workload, num_blocks=num_blocks, block_size=BLOCK, max_num_seqs=ROWS,
        max_num_batched_tokens=BUDGET, **COST,
    )  # fmt: skip
    times, ends, stats = reference(num_blocks)
    assert run.pass_ends() == ends
    assert {i: run.token_times(i) for i in times} == times
    assert run.summary["preemptions"] == stats.preemptions
    assert run.summary["recomputed_tokens"] == stats.recomputed_tokens
    assert run.summary["prefix_hit_tokens"] == stats.prefix_hits > 0
    assert (stats.preemptions > 0) == (num_blocks == 14)

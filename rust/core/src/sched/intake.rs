//! What `add` accepts, and how it comes in.

use crate::config::Limits;
use crate::error::{Error, RequestError, StateError};
use crate::ids::{RequestId, SequenceId};
use crate::sched::rank::Rank;
use crate::sched::request::{Family, Request, Sequence, Status, make_room, quiet_until};
use crate::sched::rows::small;
use crate::sched::state::State;
use crate::table::{Table, blocks_for};
use crate::tokens;

/// Refuses by name what can not be run (CONTRACT §3.1); changes nothing.
#[allow(clippy::cast_precision_loss, reason = "lengths far below 2^53")]
pub(crate) fn check(state: &State, request: &Request) -> Result<(), RequestError> {
    let limits = &state.limits;
    let len = request.prompt.len();
    if len == 0 {
        return Err(RequestError::new("prompt", "it is empty"));
    }
    tokens::check("prompt", &request.prompt)?;
    if len >= limits.max_model_len {
        let text = format!("{len} tokens leave no room for an output below max_model_len = {}", limits.max_model_len);
        return Err(RequestError::beyond(
            "prompt",
            text,
            limits.max_model_len as f64 - 1.0,
            (len + 1 - limits.max_model_len) as f64,
        ));
    }
    let (blocks, usable) = (blocks_for(len, state.cache.block_size()), state.cache.usable());
    if blocks > usable {
        let text = format!("{len} tokens need {blocks} blocks, and {usable} are all there are");
        return Err(RequestError::beyond("prompt", text, usable as f64, (blocks - usable) as f64));
    }
    if request.min_tokens > request.max_tokens {
        let (min, max) = (request.min_tokens, request.max_tokens);
        let text = format!("{min} is more than max_tokens = {max}");
        return Err(RequestError::beyond("min_tokens", text, max as f64, (min - max) as f64));
    }
    tokens::check("stop_token_ids", &request.stop_token_ids)?;
    for (name, number) in [("deadline", request.deadline), ("arrival", request.arrival), ("key", request.key)] {
        if number.is_some_and(|number| !number.is_finite()) {
            return Err(RequestError::new(name, "it is not a finite number"));
        }
    }
    if request.priority.unsigned_abs() > MAX_PRIORITY {
        return Err(RequestError::new("priority", format!("{} is beyond ±2^53", request.priority)));
    }
    if limits.is_worst_case() {
        check_worst_case(state, len, request.max_tokens)?;
    }
    check_n(request.n, limits)
}

/// Blocks for the worst case that are more than there are could never be given.
#[allow(clippy::cast_precision_loss, reason = "lengths far below 2^53")]
fn check_worst_case(state: &State, known: usize, max_tokens: usize) -> Result<(), RequestError> {
    let len = known.saturating_add(max_tokens).min(state.limits.max_model_len);
    let (blocks, usable) = (blocks_for(len, state.cache.block_size()), state.cache.usable());
    if blocks <= usable {
        return Ok(());
    }
    let text = format!("{len} tokens in the worst case need {blocks} blocks, and {usable} are all there are");
    Err(RequestError::beyond("max_tokens", text, usable as f64, (blocks - usable) as f64))
}

/// Takes in a request that was checked. O(prompt + log waiting).
pub(crate) fn insert(state: &mut State, request: Request) -> RequestId {
    let undated = request.arrival.is_none() && state.now.is_none();
    // An undated request arrives with the first step. Adding 0 makes the two zeros one.
    let arrival = request.arrival.or(state.now).unwrap_or(0.0) + 0.0;
    let order = state.added;
    let class = state.limits.class(&request);
    state.added += 1;
    let max_len = request.prompt.len().saturating_add(request.max_tokens).min(state.limits.max_model_len);
    let block_size = state.cache.block_size();
    // Hashed here, not in the step that admits it.
    let mut chain = Vec::new();
    if request.use_cache && state.cache.is_caching() {
        let full = &request.prompt[..request.prompt.len() / block_size * block_size];
        state.cache.prefix().extend_chain(&mut chain, full, &request.identity);
    }
    let State { requests, sequences, limits, .. } = state;
    let id = requests.insert_with(|id| {
        // Those that follow take the prompt when they fork, or take over.
        let mut follower = Sequence {
            prompt_len: request.prompt.len(),
            tokens: Vec::new(),
            table: Table::default(),
            chain: Vec::new(),
            status: Status::Following(None),
            request: id,
            rank: Rank { class: 0.0, key: 0.0, arrival, order, index: 0 },
            class,
            undated,
            max_len,
            // No output has a number beyond the longest length.
            min_tokens: request.min_tokens.min(max_len),
            stop_token_ids: sorted(request.stop_token_ids),
            identity: request.identity,
            use_cache: request.use_cache,
            was_admitted: false,
            released: false,
            turn: 0,
            high_water: 0,
            in_plans: 0,
        };
        follower.rank = limits.rank(&follower);
        let follow = |index| Sequence { rank: Rank { index, ..follower.rank }, ..follower.clone() };
        let followers: Vec<Sequence> = (1..small(request.n)).map(follow).collect();
        let status = if request.ready { Status::Waiting } else { Status::NotReady };
        let first = Sequence { tokens: request.prompt, chain, status, ..follower };
        let all = std::iter::once(first).chain(followers).map(|sequence| sequences.insert_with(|_| sequence)).collect();
        Family { sequences: all, num_alive: request.n, forked: false, leader: 0 }
    });
    let first = state.requests.live(id).sequences[0];
    if request.ready {
        state.queue.push(state.sequences.live(first).rank, first);
    } else {
        state.num_not_ready += 1;
    }
    id
}

/// Goes on with a request whose only sequence has ended and was not released: `tokens` follow what it knows (CONTRACT §3.1).
/// O(tokens + log waiting).
pub(crate) fn extend(state: &mut State, request: RequestId, tokens: &[i32], max_tokens: usize) -> Result<(), Error> {
    let seq = check_extension(state, request, tokens, max_tokens)?;
    let max_model_len = state.limits.max_model_len;
    let sequence = state.sequences.live_mut(seq);
    // What its end still had to lead to is void; that it is reported stays.
    sequence.turn += 1;
    sequence.tokens.extend_from_slice(tokens);
    sequence.prompt_len = sequence.tokens.len();
    sequence.max_len = sequence.tokens.len().saturating_add(max_tokens).min(max_model_len);
    sequence.min_tokens = 0;
    let Status::Ended { row: Some(row), .. } = sequence.status else {
        state.put_into_queue(seq);
        return Ok(());
    };
    sequence.status = Status::Running(row);
    make_room(sequence, state.cache.block_size(), max_model_len);
    let runner = state.rows.at_mut(row);
    let len = small(sequence.tokens.len());
    // Plans that were out when it ended may have gone further than it did.
    (runner.scheduled, runner.pending) = (runner.computed, 0);
    (runner.known, runner.prompt_len, runner.max_len) = (len, len, small(sequence.max_len));
    runner.quiet_until = quiet_until(sequence, runner.computed as usize);
    runner.last_token = sequence.tokens.last().copied().unwrap_or(0);
    runner.ended = false;
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "lengths far below 2^53")]
fn check_extension(state: &State, request: RequestId, tokens: &[i32], max_tokens: usize) -> Result<SequenceId, Error> {
    let &[seq] = &*state.requests.get(request)?.sequences else {
        return Err(RequestError::new("request", "it has more than one sequence").into());
    };
    if tokens.is_empty() {
        return Err(RequestError::new("tokens", "there are none").into());
    }
    tokens::check("tokens", tokens)?;
    let sequence = state.sequences.live(seq);
    let Status::Ended { row, .. } = sequence.status else {
        return Err(StateError::new("the request goes on: only one that has ended is extended").into());
    };
    if sequence.released {
        return Err(StateError::new("the request has ended, and its blocks were released").into());
    }
    if row.map_or(sequence.in_plans, |row| state.rows.at(row).in_plans) > 0 {
        return Err(StateError::new("a plan that names the request is out: commit it first").into());
    }
    let (known, limits) = (sequence.tokens.len() + tokens.len(), &state.limits);
    if known >= limits.max_model_len {
        let text = format!("{known} tokens in all leave no room for an output below {}", limits.max_model_len);
        let over = (known + 1 - limits.max_model_len) as f64;
        return Err(RequestError::beyond("tokens", text, limits.max_model_len as f64 - 1.0, over).into());
    }
    let (blocks, usable) = (blocks_for(known, state.cache.block_size()), state.cache.usable());
    if blocks > usable {
        let text = format!("{known} tokens in all need {blocks} blocks, and {usable} are all there are");
        return Err(RequestError::beyond("tokens", text, usable as f64, (blocks - usable) as f64).into());
    }
    if limits.is_worst_case() {
        check_worst_case(state, known, max_tokens)?;
    }
    Ok(seq)
}

/// In order, so that a stop is looked up in O(log n).
fn sorted(mut tokens: Vec<i32>) -> Box<[i32]> {
    tokens.sort_unstable();
    tokens.into_boxed_slice()
}

/// Priorities are exact as `f64` up to here.
const MAX_PRIORITY: u64 = 1 << 53;

fn check_n(n: usize, limits: &Limits) -> Result<(), RequestError> {
    if n == 0 || n > limits.max_num_seqs {
        let range = format!("{n} is not in 1 ..= max_num_seqs = {}", limits.max_num_seqs);
        return Err(RequestError::new("n", range));
    }
    if n > 1 && limits.is_worst_case() {
        return Err(RequestError::new("n", format!("{n} sequences: reserve=worst_case takes one a request")));
    }
    Ok(())
}

//! What `add` accepts, and how it comes in.

use crate::error::RequestError;
use crate::ids::RequestId;
use crate::sched::rank::Rank;
use crate::sched::request::{Family, Request, Sequence, Status};
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
    let (blocks, usable) = (blocks_for(len, state.cache.block_size()), state.cache.num_blocks());
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
        check_worst_case(state, request)?;
    }
    refuse_later(request, limits.max_num_seqs)
}

/// Blocks for the worst case that are more than there are could never be given.
#[allow(clippy::cast_precision_loss, reason = "lengths far below 2^53")]
fn check_worst_case(state: &State, request: &Request) -> Result<(), RequestError> {
    let len = request.prompt.len().saturating_add(request.max_tokens).min(state.limits.max_model_len);
    let (blocks, usable) = (blocks_for(len, state.cache.block_size()), state.cache.num_blocks());
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
    let rank = Rank { class: 0.0, key: 0.0, arrival, order: state.added };
    let class = state.limits.class(&request);
    let status = if request.ready { Status::Waiting } else { Status::NotReady };
    state.added += 1;
    let max_len = request.prompt.len().saturating_add(request.max_tokens).min(state.limits.max_model_len);
    let sequences = &mut state.sequences;
    let id = state.requests.insert_with(|id| {
        let seq = sequences.insert_with(|_| Sequence {
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            table: Table::default(),
            chain: Vec::new(),
            status,
            request: id,
            rank,
            class,
            undated,
            max_len,
            // No output has a number beyond the longest length.
            min_tokens: request.min_tokens.min(max_len),
            stop_token_ids: sorted(request.stop_token_ids),
            samples: request.max_tokens > 0,
            identity: request.identity,
            use_cache: request.use_cache,
            was_admitted: false,
            high_water: 0,
        });
        Family { sequences: vec![seq] }
    });
    for &seq in &state.requests.live(id).sequences {
        let sequence = state.sequences.live_mut(seq);
        sequence.rank = state.limits.rank(sequence);
        if request.ready {
            state.queue.push(sequence.rank, seq);
        } else {
            state.num_not_ready += 1;
        }
    }
    id
}

/// In order, so that a stop is looked up in O(log n).
fn sorted(mut tokens: Vec<i32>) -> Box<[i32]> {
    tokens.sort_unstable();
    tokens.into_boxed_slice()
}

/// Priorities are exact as `f64` up to here.
const MAX_PRIORITY: u64 = 1 << 53;

fn refuse_later(request: &Request, max_num_seqs: usize) -> Result<(), RequestError> {
    if request.n == 0 || request.n > max_num_seqs {
        return Err(RequestError::new("n", format!("{} is not in 1 ..= max_num_seqs = {max_num_seqs}", request.n)));
    }
    if request.n != 1 {
        return Err(RequestError::new("n", format!("{} sequences: more than one comes later", request.n)));
    }
    Ok(())
}

//! The requests that arrive: when, how long, and what their prompts share.
//!
//! Columns, not rows: a million requests are a handful of arrays. Prompts are not stored; they are made
//! when a request is handed to the scheduler, from the numbers here:
//!
//! ```text
//! token value            0 … 2^29-1             2^30 + i
//! stands for             a shared name          what only request i holds (its own prompt part, its output)
//! prompt of `Blocks`     [id 0] × 512 [id 1] × 512 … [last id] × rest
//! prompt of `Shared`     [prefix] × prefix_tokens  [own] × rest
//! prompt of neither      [own] × prompt_tokens
//! ```
//!
//! Equal names give equal tokens and different names different ones, exactly: names are numbered in order
//! of first appearance, not hashed. So the prefix cache works on a trace as it would on its text, and rows
//! that name nothing share nothing.

use crate::error::WorkloadError;
use crate::num::{count, index};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use xxhash_rust::xxh3::Xxh3;

/// The first token value that belongs to one request alone.
const OWN: u32 = 1 << 30;
/// How many shared names, and how many requests, a workload may have.
const LIMIT: usize = 1 << 29;

/// What the prompts of a workload share, by request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prefixes {
    /// Nothing.
    #[default]
    None,
    /// Chains of named blocks: request i has `ids[indptr[i] .. indptr[i + 1]]`, each naming `block_tokens`
    /// tokens of its prompt. What lies beyond the last id is the request's own.
    Blocks {
        /// The tokens that one id names.
        block_tokens: u32,
        /// Where each request's ids begin; one entry more than there are requests.
        indptr: Vec<usize>,
        /// The ids, numbered in order of first appearance.
        ids: Vec<u32>,
    },
    /// A shared beginning: the first `tokens[i]` tokens of request i are those of prefix `ids[i]`.
    Shared {
        /// The prefix of each request, numbered in order of first appearance.
        ids: Vec<u32>,
        /// How many tokens of it the request begins with; 0 for none.
        tokens: Vec<u32>,
    },
}

/// The requests of one run, in trace order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    arrival_s: Vec<f64>,
    prompt_tokens: Vec<u32>,
    output_tokens: Vec<u32>,
    prefixes: Prefixes,
    concurrency: Option<u32>,
}

/// Numbers names in order of first appearance.
#[derive(Default)]
pub(crate) struct Names(BTreeMap<i64, u32>);

impl Names {
    /// The number of a name, or `None` when there are too many.
    pub(crate) fn number(&mut self, name: i64) -> Option<u32> {
        let next = u32::try_from(self.0.len()).ok().filter(|&n| n < OWN >> 1)?;
        Some(*self.0.entry(name).or_insert(next))
    }
}

/// The columns of a trace, as they were read. Names are any 64-bit integers.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// Arrival of each request, seconds.
    pub arrival_s: Vec<f64>,
    /// Prompt length of each request.
    pub prompt_tokens: Vec<u32>,
    /// Output length of each request; the scheduler never sees it.
    pub output_tokens: Vec<u32>,
    /// What prompts share.
    pub prefixes: NamedPrefixes,
}

/// [`Prefixes`] before its names are numbered.
#[derive(Clone, Debug, Default)]
pub enum NamedPrefixes {
    /// Nothing is shared.
    #[default]
    None,
    /// Hash ids: see [`Prefixes::Blocks`].
    Blocks {
        /// The tokens that one id names.
        block_tokens: u32,
        /// Where each request's ids begin.
        indptr: Vec<usize>,
        /// The ids.
        ids: Vec<i64>,
    },
    /// Prefix ids: see [`Prefixes::Shared`].
    Shared {
        /// The prefix of each request.
        ids: Vec<i64>,
        /// Its tokens.
        tokens: Vec<u32>,
    },
}

impl Workload {
    /// A workload from columns of equal length.
    ///
    /// # Errors
    /// [`WorkloadError`] names the first request and column that is wrong: columns of different lengths, an
    /// arrival that is negative or not finite, a zero length, a length beyond 2^30, more ids than the
    /// prompt has blocks, a prefix longer than its prompt.
    ///
    /// # Complexity
    /// O(requests + ids · log names).
    pub fn new(columns: Columns) -> Result<Self, WorkloadError> {
        check_columns(&columns)?;
        let prefixes = number_names(columns.prefixes, &columns.prompt_tokens)?;
        Ok(Self {
            arrival_s: columns.arrival_s,
            prompt_tokens: columns.prompt_tokens,
            output_tokens: columns.output_tokens,
            prefixes,
            concurrency: None,
        })
    }

    /// The same requests from a fixed number of users, each of whom sends the next one when the last has ended. The
    /// arrivals of the columns do not matter then.
    #[must_use]
    pub fn in_closed_loop(mut self, users: NonZeroU32) -> Self {
        self.arrival_s.fill(0.0);
        self.concurrency = Some(users.get());
        self
    }

    /// How many users send the requests in turn; `None` where arrivals are given.
    #[must_use]
    pub const fn concurrency(&self) -> Option<u32> {
        self.concurrency
    }

    /// How many requests there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.arrival_s.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.arrival_s.is_empty()
    }

    /// The arrival of each request, seconds on the trace's clock.
    #[must_use]
    pub fn arrivals(&self) -> &[f64] {
        &self.arrival_s
    }

    /// The prompt length of each request.
    #[must_use]
    pub fn prompt_tokens(&self) -> &[u32] {
        &self.prompt_tokens
    }

    /// The output length of each request.
    #[must_use]
    pub fn output_tokens(&self) -> &[u32] {
        &self.output_tokens
    }

    /// What the prompts share.
    #[must_use]
    pub const fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// The first `limit` requests in trace order. A smaller workload stays as it is.
    pub fn truncate(&mut self, limit: usize) {
        self.arrival_s.truncate(limit);
        self.prompt_tokens.truncate(limit);
        self.output_tokens.truncate(limit);
        match &mut self.prefixes {
            Prefixes::None => {}
            Prefixes::Blocks { indptr, ids, .. } => {
                indptr.truncate(self.arrival_s.len() + 1);
                ids.truncate(indptr.last().copied().unwrap_or(0));
            }
            Prefixes::Shared { ids, tokens } => {
                ids.truncate(limit);
                tokens.truncate(limit);
            }
        }
    }

    /// Multiplies every arrival by `scale`: 0.5 is twice the rate.
    ///
    /// # Errors
    /// [`WorkloadError`] where an arrival is no longer finite; nothing has changed then.
    pub fn scale_time(&mut self, scale: f64) -> Result<(), WorkloadError> {
        let scaled: Vec<f64> = self.arrival_s.iter().map(|arrival| arrival * scale).collect();
        check_arrivals(&scaled)?;
        self.arrival_s = scaled;
        Ok(())
    }

    /// The trace positions in queue order: by arrival, then by position.
    #[must_use]
    pub fn queue_order(&self) -> Vec<u32> {
        let positions = u32::try_from(self.len()).unwrap_or(u32::MAX);
        let mut order: Vec<u32> = (0..positions).collect();
        order.sort_by(|&a, &b| self.arrival_s[index(a)].total_cmp(&self.arrival_s[index(b)]).then(a.cmp(&b)));
        order
    }

    /// The longest prompt + output: the model length that the workload needs.
    #[must_use]
    pub fn longest(&self) -> u64 {
        let lengths = self.prompt_tokens.iter().zip(&self.output_tokens);
        lengths.map(|(&p, &o)| u64::from(p) + u64::from(o)).max().unwrap_or(0)
    }

    /// The token that only this request emits.
    #[must_use]
    pub fn own_token(request: u32) -> i32 {
        // Requests are fewer than 2^29, checked by `new`: the sum stays below 2^31.
        (OWN | request).cast_signed()
    }

    /// The tokens of a request's prompt, as the module's picture shows.
    ///
    /// # Panics
    /// If the request does not exist.
    ///
    /// # Complexity
    /// O(prompt).
    #[must_use]
    pub fn prompt(&self, request: u32) -> Vec<i32> {
        let at = index(request);
        let length = index(self.prompt_tokens[at]);
        let mut prompt = Vec::with_capacity(length);
        match &self.prefixes {
            Prefixes::None => {}
            Prefixes::Blocks { block_tokens, indptr, ids } => {
                for &id in &ids[indptr[at]..indptr[at + 1]] {
                    let end = (prompt.len() + index(*block_tokens)).min(length);
                    prompt.resize(end, id.cast_signed());
                }
            }
            Prefixes::Shared { ids, tokens } => {
                prompt.resize(index(tokens[at]), ids[at].cast_signed());
            }
        }
        prompt.resize(length, Self::own_token(request));
        prompt
    }

    /// XXH3-64 of the workload's canonical form, as 16 hexadecimal digits.
    ///
    /// The form: the number of requests; then of each request its arrival (IEEE bits), prompt, output, the
    /// number of its shared pieces and of each piece its name's number and its tokens; all little-endian
    /// 64-bit words; in a closed loop the number of users follows. Equal hashes mean, but for a collision, that two runs saw the same traffic.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut hasher = Xxh3::new();
        let mut word = |value: u64| hasher.update(&value.to_le_bytes());
        word(count(self.len()));
        for at in 0..self.len() {
            word(self.arrival_s[at].to_bits());
            word(u64::from(self.prompt_tokens[at]));
            word(u64::from(self.output_tokens[at]));
            match &self.prefixes {
                Prefixes::None => word(0),
                Prefixes::Blocks { block_tokens, indptr, ids } => {
                    let named = &ids[indptr[at]..indptr[at + 1]];
                    word(count(named.len()));
                    for &id in named {
                        word(u64::from(id));
                        word(u64::from(*block_tokens));
                    }
                }
                Prefixes::Shared { tokens, .. } if tokens[at] == 0 => word(0),
                Prefixes::Shared { ids, tokens } => {
                    word(1);
                    word(u64::from(ids[at]));
                    word(u64::from(tokens[at]));
                }
            }
        }
        if let Some(users) = self.concurrency {
            word(u64::from(users));
        }
        format!("{:016x}", hasher.digest())
    }
}

fn check_arrivals(arrivals: &[f64]) -> Result<(), WorkloadError> {
    let is_bad = |arrival: &f64| !(arrival.is_finite() && *arrival >= 0.0);
    match arrivals.iter().position(is_bad) {
        Some(at) => Err(WorkloadError {
            index: at,
            column: "arrival_s",
            reason: format!("{:?} is not a finite time at or after 0", arrivals[at]),
        }),
        None => Ok(()),
    }
}

fn check_columns(columns: &Columns) -> Result<(), WorkloadError> {
    let requests = columns.arrival_s.len();
    let lengths = [("prompt_tokens", &columns.prompt_tokens), ("output_tokens", &columns.output_tokens)];
    check_arrivals(&columns.arrival_s)?;
    for (column, values) in lengths {
        if values.len() != requests || requests >= LIMIT {
            let reason = format!("{} values for {requests} arrivals", values.len());
            return Err(WorkloadError { index: requests.min(values.len()), column, reason });
        }
        if let Some(at) = values.iter().position(|&n| n == 0 || n > OWN) {
            let reason = format!("{} is not in 1 … 2^30", values[at]);
            return Err(WorkloadError { index: at, column, reason });
        }
    }
    Ok(())
}

fn too_many(index: usize, column: &'static str) -> WorkloadError {
    WorkloadError { index, column, reason: "more than 2^29 different names".to_owned() }
}

/// Numbers the names, having checked that each request's pieces fit into its prompt.
fn number_names(named: NamedPrefixes, prompts: &[u32]) -> Result<Prefixes, WorkloadError> {
    let mut numbers = Names::default();
    match named {
        NamedPrefixes::None => Ok(Prefixes::None),
        NamedPrefixes::Blocks { block_tokens, indptr, ids } => {
            check_blocks(block_tokens, &indptr, ids.len(), prompts)?;
            let mut numbered = Vec::with_capacity(ids.len());
            for at in 0..prompts.len() {
                for &id in &ids[indptr[at]..indptr[at + 1]] {
                    numbered.push(numbers.number(id).ok_or_else(|| too_many(at, "hash_ids"))?);
                }
            }
            Ok(Prefixes::Blocks { block_tokens, indptr, ids: numbered })
        }
        NamedPrefixes::Shared { ids, tokens } => {
            if ids.len() != prompts.len() || tokens.len() != prompts.len() {
                let reason = format!("{} values for {} requests", ids.len(), prompts.len());
                return Err(WorkloadError { index: 0, column: "prefix_id", reason });
            }
            let mut numbered = Vec::with_capacity(ids.len());
            for (at, (&id, &shared)) in ids.iter().zip(&tokens).enumerate() {
                if shared > prompts[at] {
                    let reason = format!("{shared} is longer than the prompt of {}", prompts[at]);
                    return Err(WorkloadError { index: at, column: "prefix_tokens", reason });
                }
                // A row without a prefix names nothing, so that it takes no number either.
                let number = if shared == 0 { Some(0) } else { numbers.number(id) };
                numbered.push(number.ok_or_else(|| too_many(at, "prefix_id"))?);
            }
            Ok(Prefixes::Shared { ids: numbered, tokens })
        }
    }
}

fn check_blocks(block_tokens: u32, indptr: &[usize], num_ids: usize, prompts: &[u32]) -> Result<(), WorkloadError> {
    let refuse = |index, reason| Err(WorkloadError { index, column: "hash_ids", reason });
    if block_tokens == 0 {
        return refuse(0, "blocks of 0 tokens".to_owned());
    }
    let is_whole = indptr.len() == prompts.len() + 1
        && indptr.first() == Some(&0)
        && indptr.last() == Some(&num_ids)
        && indptr.is_sorted();
    if !is_whole {
        return refuse(0, "the index of the ids does not describe them".to_owned());
    }
    for (at, &prompt) in prompts.iter().enumerate() {
        let ids = indptr[at + 1] - indptr[at];
        let blocks = index(prompt.div_ceil(block_tokens));
        if ids > blocks {
            let reason = format!("{ids} ids for {blocks} blocks of {block_tokens} tokens");
            return refuse(at, reason);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Columns, NamedPrefixes, Workload};

    fn columns(prompts: &[u32], prefixes: NamedPrefixes) -> Columns {
        Columns {
            arrival_s: vec![0.0; prompts.len()],
            prompt_tokens: prompts.to_vec(),
            output_tokens: vec![1; prompts.len()],
            prefixes,
        }
    }

    fn blocks(block_tokens: u32, indptr: &[usize], ids: &[i64]) -> NamedPrefixes {
        NamedPrefixes::Blocks { block_tokens, indptr: indptr.to_vec(), ids: ids.to_vec() }
    }

    #[test]
    fn test_equal_ids_give_equal_tokens_and_no_ids_share_nothing() -> Result<(), super::WorkloadError> {
        let ids = blocks(4, &[0, 2, 4, 4], &[70, 90, 70, 80]);
        let workload = Workload::new(columns(&[6, 8, 6], ids))?;
        assert_eq!(workload.prompt(0), [0, 0, 0, 0, 1, 1]);
        assert_eq!(workload.prompt(1), [0, 0, 0, 0, 2, 2, 2, 2]);
        assert_eq!(workload.prompt(2), [Workload::own_token(2); 6]);
        Ok(())
    }

    #[test]
    fn test_shared_prefix_begins_the_prompt() -> Result<(), super::WorkloadError> {
        let shared = NamedPrefixes::Shared { ids: vec![5, 9, 5], tokens: vec![2, 0, 3] };
        let workload = Workload::new(columns(&[3, 2, 3], shared))?;
        let own = Workload::own_token;
        assert_eq!(workload.prompt(0), [0, 0, own(0)]);
        assert_eq!(workload.prompt(1), [own(1), own(1)]);
        assert_eq!(workload.prompt(2), [0, 0, 0]);
        Ok(())
    }

    #[test]
    fn test_malformed_columns_name_request_and_column() {
        let error = |columns: Columns| Workload::new(columns).err().map(|e| (e.index, e.column));
        let mut late = columns(&[1, 1], NamedPrefixes::None);
        late.arrival_s[1] = -0.5;
        assert_eq!(error(late.clone()), Some((1, "arrival_s")));
        late.arrival_s[1] = f64::NAN;
        assert_eq!(error(late), Some((1, "arrival_s")));
        let mut silent = columns(&[1, 1], NamedPrefixes::None);
        silent.output_tokens[1] = 0;
        assert_eq!(error(silent.clone()), Some((1, "output_tokens")));
        silent.output_tokens.pop();
        assert_eq!(error(silent), Some((1, "output_tokens")));
        assert_eq!(error(columns(&[0], NamedPrefixes::None)), Some((0, "prompt_tokens")));
        assert_eq!(error(columns(&[8], blocks(4, &[0, 3], &[1, 2, 3]))), Some((0, "hash_ids")));
        assert_eq!(error(columns(&[8], blocks(4, &[0, 1], &[1, 2]))), Some((0, "hash_ids")));
        assert_eq!(error(columns(&[8], blocks(0, &[0, 0], &[]))), Some((0, "hash_ids")));
        let long = NamedPrefixes::Shared { ids: vec![1], tokens: vec![9] };
        assert_eq!(error(columns(&[8], long)), Some((0, "prefix_tokens")));
    }

    #[test]
    fn test_hash_depends_on_everything_but_the_names() -> Result<(), super::WorkloadError> {
        let of = |columns: Columns| Workload::new(columns).map(|workload| workload.hash());
        let plain = columns(&[8, 8], NamedPrefixes::None);
        let base = of(plain.clone())?;
        assert_eq!(base.len(), 16);
        assert_eq!(base, of(plain.clone())?);
        let mut later = plain.clone();
        later.arrival_s[1] = 1e-9;
        assert_ne!(base, of(later)?);
        let mut longer = plain;
        longer.output_tokens[0] = 2;
        assert_ne!(base, of(longer)?);
        let named = of(columns(&[8, 8], blocks(4, &[0, 1, 2], &[7, 7])))?;
        assert_ne!(base, named);
        assert_eq!(named, of(columns(&[8, 8], blocks(4, &[0, 1, 2], &[-3, -3])))?);
        assert_ne!(named, of(columns(&[8, 8], blocks(4, &[0, 1, 2], &[7, 8])))?);
        Ok(())
    }

    #[test]
    fn test_truncate_and_scale_keep_the_columns_together() -> Result<(), super::WorkloadError> {
        let mut workload = Workload::new(columns(&[8, 8, 8], blocks(4, &[0, 2, 3, 5], &[1, 2, 1, 3, 4])))?;
        workload.arrival_s = vec![2.0, 1.0, 1.0];
        assert_eq!(workload.queue_order(), [1, 2, 0]);
        workload.scale_time(0.5)?;
        assert_eq!(workload.arrivals(), [1.0, 0.5, 0.5]);
        assert!(workload.scale_time(f64::INFINITY).is_err());
        workload.truncate(2);
        assert_eq!(workload.len(), 2);
        assert_eq!(workload.prompt(1)[..4], [0, 0, 0, 0]);
        let same = Workload::new(columns(&[8, 8], blocks(4, &[0, 2, 3], &[1, 2, 1])))?;
        assert_eq!(workload.prefixes(), same.prefixes());
        Ok(())
    }
}

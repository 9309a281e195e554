//! Configurations as the caller writes them, and their checked form.
//!
//! Numbers are `i64` as they come from outside; [`Geometry`] and [`Limits`] hold what was checked. What CONTRACT
//! marks as later, and what this form does not do yet, is refused here by name.

use crate::error::ConfigError;
use crate::group::{self, KvGroup};

/// The largest number of blocks: ids are non-negative `int32`.
pub const MAX_NUM_BLOCKS: i64 = (1 << 31) - 1;
/// The largest block.
pub const MAX_BLOCK_SIZE: i64 = 256;
/// The largest batch.
pub const MAX_NUM_SEQS: i64 = 65_536;
/// The most plans out at once.
pub const MAX_INFLIGHT_STEPS: i64 = 4;

macro_rules! names {
    ($(#[$doc:meta])* $name:ident, $field:literal { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// Every name, in the order of the contract.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The public name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Reads a public name.
            ///
            /// # Errors
            ///
            /// [`ConfigError`] that lists the names.
            pub fn from_name(name: &str) -> Result<Self, ConfigError> {
                match name {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(ConfigError::new($field, format!("{name:?}"), format!("one of {}", Self::NAMES.join(", ")))),
                }
            }
        }
    };
}

names! {
    /// How prompts and decodes share a step (PLANNER §2).
    Batching, "batching" {
        /// A batch runs to its longest member; nobody joins.
        Static = "static",
        /// One whole prompt alone, or all decodes.
        Continuous = "continuous",
        /// Whole prompts in the same pass as the decodes.
        Mixed = "mixed",
        /// Decodes first; prompts in chunks fill the rest of the token budget.
        Chunked = "chunked",
    }
}
names! {
    /// Who goes first (CONTRACT §3.4).
    Policy, "policy" {
        /// By arrival.
        Fcfs = "fcfs",
        /// By priority.
        Priority = "priority",
        /// Fewest tokens left to prefill.
        Sjf = "sjf",
        /// Earliest deadline.
        Edf = "edf",
        /// Longest cached prefix.
        Lpm = "lpm",
        /// Tenants weighted by tokens served.
        Fair = "fair",
    }
}
names! {
    /// How many blocks an admission takes.
    Reserve, "reserve" {
        /// As tokens are computed.
        OnDemand = "on_demand",
        /// For prompt and `max_tokens` at once.
        WorstCase = "worst_case",
    }
}
names! {
    /// How a running sequence loses its blocks.
    Preemption, "preemption" {
        /// They are given up, and computed again.
        Recompute = "recompute",
        /// They are moved to the host.
        Swap = "swap",
        /// Whichever is cheaper.
        Auto = "auto",
    }
}
names! {
    /// Who loses its blocks when they are short.
    Victim, "victim" {
        /// The last in policy order.
        Latest = "latest",
        /// Who has computed least.
        LeastComputed = "least_computed",
        /// The lowest class.
        LowestClass = "lowest_class",
    }
}
names! {
    /// Which cached block is evicted first.
    Eviction, "eviction" {
        /// The least recently used leaf.
        Lru = "lru",
    }
}

/// What a [`KvCache`](crate::KvCache) is made of; the fields and defaults of CONTRACT §2.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "the options of the contract, each on its own")]
pub struct CacheConfig {
    /// Blocks in the pool, 1 ..= 2^31 - 1.
    pub num_blocks: i64,
    /// Tokens in a block, 1 ..= 256.
    pub block_size: i64,
    /// The KV groups.
    pub groups: Vec<KvGroup>,
    /// Whether full blocks are published and found again.
    pub prefix_caching: bool,
    /// *Later*: hits inside a block.
    pub partial_hits: bool,
    /// Whether equal blocks are merged; `false` keeps a sequence's own block and holds the findable one beside it.
    pub dedupe: bool,
    /// Whether block 0 is never given out and does not count as usable.
    pub reserve_null_block: bool,
    /// The eviction policy.
    pub eviction: Eviction,
    /// Seed of the block hashes.
    pub hash_seed: u64,
    /// For tests: how many bits of a block's hash are used, 1 ..= 64. Collisions must change nothing but their count.
    pub hash_bits: i64,
    /// *Later*: blocks of the host tier.
    pub host_blocks: i64,
    /// *Later*: blocks of the disk tier.
    pub disk_blocks: i64,
    /// *Later*: whether changes of the findable blocks are logged.
    pub events: bool,
}

impl CacheConfig {
    /// The defaults, with a pool of `num_blocks`.
    #[must_use]
    pub fn new(num_blocks: i64) -> Self {
        Self {
            num_blocks,
            block_size: 16,
            groups: vec![KvGroup::default()],
            prefix_caching: true,
            partial_hits: false,
            dedupe: true,
            reserve_null_block: false,
            eviction: Eviction::Lru,
            hash_seed: 0,
            hash_bits: 64,
            host_blocks: 0,
            disk_blocks: 0,
            events: false,
        }
    }

    pub(crate) fn check(&self) -> Result<Geometry, ConfigError> {
        let num_blocks = in_range("num_blocks", self.num_blocks, 1, MAX_NUM_BLOCKS)?;
        if self.reserve_null_block && num_blocks == 1 {
            return Err(ConfigError::new("num_blocks", num_blocks, "2 ..= 2147483647, since block 0 is reserved"));
        }
        let block_size = in_range("block_size", self.block_size, 1, MAX_BLOCK_SIZE)?;
        let hash_bits = in_range("_hash_bits", self.hash_bits, 1, 64)?;
        group::check(&self.groups)?;
        later("partial_hits", self.partial_hits, false)?;
        later("host_blocks", self.host_blocks, 0)?;
        later("disk_blocks", self.disk_blocks, 0)?;
        later("events", self.events, false)?;
        let Ok(hash_bits) = u32::try_from(hash_bits) else { unreachable!("checked to be at most 64") };
        Ok(Geometry {
            num_blocks,
            first_block: usize::from(self.reserve_null_block),
            block_size,
            hash_bits,
            hash_seed: self.hash_seed,
            caching: self.prefix_caching,
            dedupe: self.dedupe,
        })
    }
}

/// The checked shape of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) num_blocks: usize,
    /// The lowest block that is given out.
    pub(crate) first_block: usize,
    pub(crate) block_size: usize,
    pub(crate) hash_bits: u32,
    pub(crate) hash_seed: u64,
    pub(crate) caching: bool,
    pub(crate) dedupe: bool,
}

/// What a [`Scheduler`](crate::Scheduler) is made of; the fields and defaults of CONTRACT §3.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// The cache under it.
    pub cache: CacheConfig,
    /// Rows: how many sequences run at once, 1 ..= 65,536.
    pub max_num_seqs: i64,
    /// Tokens in a step, at least 1.
    pub max_num_batched_tokens: i64,
    /// Bounds prompt + output, 2 ..= 2^31 - 1.
    pub max_model_len: i64,
    /// How prompts and decodes share a step.
    pub batching: Batching,
    /// Who goes first.
    pub policy: Policy,
    /// Rank gained per second of waiting, at least 0.
    pub aging: f64,
    /// *Later*: how many may pass a head that does not fit.
    pub bypass_limit: i64,
    /// Prompts that may be left incomplete after a step, at least 1.
    pub max_partial_prefills: i64,
    /// Cap on a prompt's tokens in one step while others wait; 0 is none.
    pub long_prefill_threshold: i64,
    /// Share of the usable blocks that an admission leaves available, `0 <= watermark < 1`.
    pub watermark: f64,
    /// How many blocks an admission takes.
    pub reserve: Reserve,
    /// How a running sequence loses its blocks.
    pub preemption: Preemption,
    /// Who loses them.
    pub victim: Victim,
    /// Plans out at once, 1 ..= 4.
    pub inflight_steps: i64,
    /// *Later*: extra slots for drafts.
    pub num_lookahead: i64,
    /// *Later*: adapters in one step, 0 for no limit.
    pub max_adapters_per_step: i64,
}

impl SchedulerConfig {
    /// The defaults, over a pool of `num_blocks`.
    #[must_use]
    pub fn new(num_blocks: i64) -> Self {
        Self {
            cache: CacheConfig::new(num_blocks),
            max_num_seqs: 256,
            max_num_batched_tokens: 2_048,
            max_model_len: 32_768,
            batching: Batching::Chunked,
            policy: Policy::Fcfs,
            aging: 0.0,
            bypass_limit: 0,
            max_partial_prefills: 4,
            long_prefill_threshold: 0,
            watermark: 0.01,
            reserve: Reserve::OnDemand,
            preemption: Preemption::Recompute,
            victim: Victim::Latest,
            inflight_steps: 1,
            num_lookahead: 0,
            max_adapters_per_step: 0,
        }
    }

    pub(crate) fn check(&self) -> Result<Limits, ConfigError> {
        let geometry = self.cache.check()?;
        let top = i64::from(i32::MAX);
        let max_num_seqs = in_range("max_num_seqs", self.max_num_seqs, 1, MAX_NUM_SEQS)?;
        let token_budget = in_range("max_num_batched_tokens", self.max_num_batched_tokens, 1, top)?;
        let max_model_len = in_range("max_model_len", self.max_model_len, 2, top)?;
        let max_partial_prefills = in_range("max_partial_prefills", self.max_partial_prefills, 1, top)?;
        let cap = in_range("long_prefill_threshold", self.long_prefill_threshold, 0, top)?;
        let inflight_steps = in_range("inflight_steps", self.inflight_steps, 1, MAX_INFLIGHT_STEPS)?;
        if !(0.0..1.0).contains(&self.watermark) {
            return Err(ConfigError::new("watermark", self.watermark, "0 <= watermark < 1"));
        }
        if !(self.aging.is_finite() && self.aging >= 0.0) {
            return Err(ConfigError::new("aging", self.aging, "a finite number, at least 0"));
        }
        if self.batching != Batching::Chunked && token_budget < max_model_len {
            let range =
                format!("at least max_model_len = {max_model_len}, since {} takes prompts whole", self.batching.name());
            return Err(ConfigError::new("max_num_batched_tokens", token_budget, range));
        }
        self.refuse_later()?;
        Ok(Limits {
            max_num_seqs,
            token_budget,
            max_model_len,
            max_partial_prefills,
            prompt_cap: if cap == 0 { usize::MAX } else { cap },
            inflight_steps,
            watermark: share_of(self.watermark, geometry.num_blocks - geometry.first_block),
            batching: self.batching,
            policy: self.policy,
            aging: self.aging,
            reserve: self.reserve,
            victim: self.victim,
        })
    }

    fn refuse_later(&self) -> Result<(), ConfigError> {
        if matches!(self.policy, Policy::Lpm | Policy::Fair) {
            let range = "fcfs, priority, sjf or edf; the others come later";
            return Err(ConfigError::new("policy", format!("{:?}", self.policy.name()), range));
        }
        later("bypass_limit", self.bypass_limit, 0)?;
        later("preemption", self.preemption.name(), Preemption::Recompute.name())?;
        later("num_lookahead", self.num_lookahead, 0)?;
        later("max_adapters_per_step", self.max_adapters_per_step, 0)
    }
}

/// The checked limits of a scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_num_seqs: usize,
    pub(crate) token_budget: usize,
    pub(crate) max_model_len: usize,
    pub(crate) max_partial_prefills: usize,
    /// Plans out at once.
    pub(crate) inflight_steps: usize,
    /// Tokens of one prompt in a step while others wait.
    pub(crate) prompt_cap: usize,
    /// Blocks that an admission leaves available.
    pub(crate) watermark: usize,
    pub(crate) batching: Batching,
    pub(crate) policy: Policy,
    pub(crate) aging: f64,
    pub(crate) reserve: Reserve,
    pub(crate) victim: Victim,
}

fn in_range(field: &'static str, value: i64, low: i64, high: i64) -> Result<usize, ConfigError> {
    let checked = usize::try_from(value).ok().filter(|_| (low..=high).contains(&value));
    checked.ok_or_else(|| ConfigError::new(field, value, format!("{low} ..= {high}")))
}

#[allow(clippy::needless_pass_by_value, reason = "copies of a word")]
fn later<T: PartialEq + std::fmt::Debug>(field: &'static str, value: T, accepted: T) -> Result<(), ConfigError> {
    if value == accepted {
        return Ok(());
    }
    Err(ConfigError::new(field, format!("{value:?}"), format!("{accepted:?} for now; the rest comes later")))
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share in [0, 1) of fewer than 2^31 blocks is exact in f64 and fits"
)]
fn share_of(share: f64, blocks: usize) -> usize {
    (share * blocks as f64).floor() as usize
}

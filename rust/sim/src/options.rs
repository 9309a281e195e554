//! The settings of a run, by name.
//!
//! One table of names serves flags, Python keywords and the report: [`SimConfig::set`] reads a setting and
//! [`SimConfig::entries`] lists them all, so that none can be missing from one of the three.

use crate::cost::{Combine, CostModel, KvRead};
use crate::metrics::Promise;
use crate::schedule::{Batching, Schedule};
use crate::value::{above_zero, at_least_zero, choice, only, switch, watermark, whole};
use crate::workload::Workload;
use octavo_core::{ConfigError, Policy, Reserve, SchedulerConfig, Victim};

pub use crate::value::Value;

/// The names of all settings, in the order of the report.
const NAMES: [&str; 28] = [
    "batching",
    "wait_for_full",
    "policy",
    "aging",
    "reserve",
    "preemption",
    "victim",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_partial_prefills",
    "long_prefill_threshold",
    "watermark",
    "num_blocks",
    "block_size",
    "prefix_caching",
    "weight_bytes",
    "kv_bytes_per_token",
    "bandwidth",
    "flop_per_token",
    "peak_flops",
    "overhead",
    "combine",
    "kv_read",
    "memory",
    "reserved",
    "ttft_s",
    "tpot_s",
    "e2e_s",
];

/// What a run is made of, but for its workload.
#[derive(Clone, Debug, PartialEq)]
pub struct SimConfig {
    /// Who runs in a pass, and on how much memory.
    pub schedule: Schedule,
    /// What a pass costs.
    pub cost: CostModel,
    /// What KV reads are counted in.
    pub kv_read: KvRead,
    /// Bytes of GPU memory.
    pub memory: f64,
    /// Bytes of it that are neither weights nor KV cache.
    pub reserved: f64,
    /// Blocks of the pool; by default what memory leaves.
    pub num_blocks: Option<u64>,
    /// Tokens of a block.
    pub block_size: u64,
    /// Rows.
    pub max_num_seqs: u64,
    /// Tokens of a pass.
    pub max_num_batched_tokens: u64,
    /// Prompts left incomplete after a pass.
    pub max_partial_prefills: u64,
    /// Cap on a prompt's tokens in a pass while others wait; 0 for none.
    pub long_prefill_threshold: u64,
    /// Share of the pool kept available at admission.
    pub watermark: f64,
    /// Whether prompts look for their prefixes.
    pub prefix_caching: bool,
    /// What a request must keep to be good.
    pub promise: Promise,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            schedule: Schedule::default(),
            cost: CostModel::default(),
            kv_read: KvRead::Tokens,
            memory: 80e9,
            reserved: 8e9,
            num_blocks: None,
            block_size: 16,
            max_num_seqs: 256,
            max_num_batched_tokens: 2_048,
            max_partial_prefills: 4,
            long_prefill_threshold: 0,
            watermark: 0.01,
            prefix_caching: true,
            promise: Promise::default(),
        }
    }
}

impl SimConfig {
    /// Sets one setting by its name. [`Value::None`] leaves it as it is.
    ///
    /// # Errors
    /// [`ConfigError`] for an unknown name, a value of the wrong kind or outside its range, and for names
    /// that have a meaning but are not built yet ("later"). Nothing has changed then.
    pub fn set(&mut self, name: &str, value: &Value) -> Result<(), ConfigError> {
        if matches!(value, Value::None) {
            return Ok(());
        }
        let Some(&name) = NAMES.iter().find(|&&known| known == name) else {
            return Err(ConfigError::new("option", name, format!("one of {}", NAMES.join(", "))));
        };
        let known = self.set_number(name, value)? || self.set_name(name, value)? || self.set_schedule(name, value)?;
        debug_assert!(known, "{name} is listed and cannot be set");
        Ok(())
    }

    fn set_number(&mut self, name: &'static str, value: &Value) -> Result<bool, ConfigError> {
        let cost = &mut self.cost;
        let promise = &mut self.promise;
        match name {
            "weight_bytes" => cost.weight_bytes = at_least_zero(name, value)?,
            "kv_bytes_per_token" => cost.kv_bytes_per_token = above_zero(name, value)?,
            "bandwidth" => cost.bandwidth = above_zero(name, value)?,
            "flop_per_token" => cost.flop_per_token = at_least_zero(name, value)?,
            "peak_flops" => cost.peak_flops = above_zero(name, value)?,
            "overhead" => cost.overhead = at_least_zero(name, value)?,
            "memory" => self.memory = above_zero(name, value)?,
            "reserved" => self.reserved = at_least_zero(name, value)?,
            "num_blocks" => self.num_blocks = Some(whole(name, value, 1, (1 << 31) - 1)?),
            "block_size" => self.block_size = whole(name, value, 1, 256)?,
            "max_num_seqs" => self.max_num_seqs = whole(name, value, 1, 65_536)?,
            "max_num_batched_tokens" => {
                self.max_num_batched_tokens = whole(name, value, 1, (1 << 31) - 1)?;
            }
            "max_partial_prefills" => {
                self.max_partial_prefills = whole(name, value, 1, 65_536)?;
            }
            "long_prefill_threshold" => {
                self.long_prefill_threshold = whole(name, value, 0, (1 << 31) - 1)?;
            }
            "watermark" => self.watermark = watermark(value)?,
            "ttft_s" => promise.ttft_s = Some(at_least_zero(name, value)?),
            "tpot_s" => promise.tpot_s = Some(at_least_zero(name, value)?),
            "e2e_s" => promise.e2e_s = Some(at_least_zero(name, value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_name(&mut self, name: &'static str, value: &Value) -> Result<bool, ConfigError> {
        match name {
            "combine" => {
                let choices = [("max", Some(Combine::Max)), ("sum", Some(Combine::Sum))];
                self.cost.combine = choice(name, value, &choices)?;
            }
            "kv_read" => {
                let choices = [("tokens", Some(KvRead::Tokens)), ("blocks", Some(KvRead::Blocks))];
                self.kv_read = choice(name, value, &choices)?;
            }
            "prefix_caching" => self.prefix_caching = switch(name, value)?,
            // A name with one value so far: the others are refused as what comes later.
            "preemption" => only(name, value, "recompute", &["swap", "auto"])?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_schedule(&mut self, name: &'static str, value: &Value) -> Result<bool, ConfigError> {
        let schedule = &mut self.schedule;
        match name {
            "batching" => {
                let choices = Batching::ALL.map(|batching| (batching.name(), Some(batching)));
                schedule.batching = choice(name, value, &choices)?;
            }
            "wait_for_full" => schedule.wait_for_full = switch(name, value)?,
            "policy" => {
                // Those without a value need what no workload brings yet, or what the core does not do yet.
                let built = |policy: &Policy| matches!(policy, Policy::Fcfs | Policy::Sjf);
                let all = [Policy::Fcfs, Policy::Sjf, Policy::Priority, Policy::Edf, Policy::Lpm, Policy::Fair];
                schedule.policy = choice(name, value, &all.map(|policy| (policy.name(), Some(policy).filter(built))))?;
            }
            "aging" => schedule.aging = at_least_zero(name, value)?,
            "reserve" => {
                let choices = [Reserve::OnDemand, Reserve::WorstCase].map(|reserve| (reserve.name(), Some(reserve)));
                schedule.reserve = choice(name, value, &choices)?;
            }
            "victim" => {
                let all = [Victim::Latest, Victim::LeastComputed, Victim::LowestClass];
                schedule.victim = choice(name, value, &all.map(|victim| (victim.name(), Some(victim))))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The settings as a workload meets them: `serial` has one row, and what takes prompts whole has room in a pass
    /// for the longest request in every row.
    #[must_use]
    pub fn resolved(&self, workload: &Workload) -> Self {
        let mut config = self.clone();
        if config.schedule.batching == Batching::Serial {
            config.max_num_seqs = 1;
        }
        if config.schedule.batching != Batching::Chunked {
            let longest = workload.longest().max(1);
            config.max_num_batched_tokens = (config.max_num_seqs * longest).min((1 << 31) - 1);
        }
        config
    }

    /// The scheduler's configuration for a workload.
    pub(crate) fn scheduler(&self, workload: &Workload) -> Result<SchedulerConfig, ConfigError> {
        let mut scheduler = SchedulerConfig::new(self.pool()?.cast_signed());
        scheduler.cache.block_size = self.block_size.cast_signed();
        scheduler.cache.prefix_caching = self.prefix_caching;
        scheduler.max_num_seqs = self.max_num_seqs.cast_signed();
        scheduler.max_num_batched_tokens = self.max_num_batched_tokens.cast_signed();
        scheduler.max_model_len = workload.longest().cast_signed();
        scheduler.batching = self.schedule.batching.in_core();
        scheduler.policy = self.schedule.policy;
        scheduler.aging = self.schedule.aging;
        scheduler.reserve = self.schedule.reserve;
        scheduler.victim = self.schedule.victim;
        scheduler.max_partial_prefills = self.max_partial_prefills.cast_signed();
        scheduler.long_prefill_threshold = self.long_prefill_threshold.cast_signed();
        scheduler.watermark = self.watermark;
        Ok(scheduler)
    }

    /// The blocks of the pool.
    ///
    /// # Errors
    /// [`ConfigError`] when memory leaves no block, or more than a scheduler can hold.
    pub fn pool(&self) -> Result<u64, ConfigError> {
        let fits = || self.cost.num_blocks(self.memory, self.reserved, self.block_size);
        match self.num_blocks.or_else(fits) {
            Some(blocks) if blocks < 1 << 31 => Ok(blocks),
            _ => Err(ConfigError::new(
                "memory",
                format!("{:?}", self.memory),
                "room for 1 … 2^31-1 KV blocks beside weight_bytes and reserved",
            )),
        }
    }

    /// Every setting and its value, in the order of the report; `num_blocks` is the pool as it comes out.
    ///
    /// # Errors
    /// As [`SimConfig::pool`].
    pub fn entries(&self) -> Result<Vec<(&'static str, Value)>, ConfigError> {
        let (cost, schedule) = (&self.cost, &self.schedule);
        let name = |name: &str| Value::Name(name.to_owned());
        let number = |number: u64| Value::Whole(number.cast_signed());
        let bound = |bound: Option<f64>| bound.map_or(Value::None, Value::Real);
        Ok(vec![
            ("batching", name(schedule.batching.name())),
            ("wait_for_full", Value::Switch(schedule.wait_for_full)),
            ("policy", name(schedule.policy.name())),
            ("aging", Value::Real(schedule.aging)),
            ("reserve", name(schedule.reserve.name())),
            ("preemption", name("recompute")),
            ("victim", name(schedule.victim.name())),
            ("max_num_seqs", number(self.max_num_seqs)),
            ("max_num_batched_tokens", number(self.max_num_batched_tokens)),
            ("max_partial_prefills", number(self.max_partial_prefills)),
            ("long_prefill_threshold", number(self.long_prefill_threshold)),
            ("watermark", Value::Real(self.watermark)),
            ("num_blocks", number(self.pool()?)),
            ("block_size", number(self.block_size)),
            ("prefix_caching", Value::Switch(self.prefix_caching)),
            ("weight_bytes", Value::Real(cost.weight_bytes)),
            ("kv_bytes_per_token", Value::Real(cost.kv_bytes_per_token)),
            ("bandwidth", Value::Real(cost.bandwidth)),
            ("flop_per_token", Value::Real(cost.flop_per_token)),
            ("peak_flops", Value::Real(cost.peak_flops)),
            ("overhead", Value::Real(cost.overhead)),
            ("combine", name(cost.combine.name())),
            ("kv_read", name(self.kv_read.name())),
            ("memory", Value::Real(self.memory)),
            ("reserved", Value::Real(self.reserved)),
            ("ttft_s", bound(self.promise.ttft_s)),
            ("tpot_s", bound(self.promise.tpot_s)),
            ("e2e_s", bound(self.promise.e2e_s)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::{SimConfig, Value};

    fn refused(name: &str, value: &Value) -> Option<(String, String)> {
        let mut config = SimConfig::default();
        let error = config.set(name, value).err()?;
        assert_eq!(config, SimConfig::default(), "a refusal changed something");
        Some((error.field.to_owned(), error.range))
    }

    #[test]
    fn test_every_entry_can_be_set_to_its_own_value() -> Result<(), crate::ConfigError> {
        let entries = SimConfig::default().entries()?;
        let mut config = SimConfig::default();
        for (name, value) in &entries {
            config.set(name, value)?;
        }
        assert_eq!(config.entries()?, entries);
        assert_eq!(entries.iter().map(|entry| entry.0).collect::<Vec<_>>(), super::NAMES);
        Ok(())
    }

    #[test]
    fn test_values_out_of_range_are_refused_by_name() {
        let negative = Value::Real(-1.0);
        for name in [
            "weight_bytes",
            "kv_bytes_per_token",
            "bandwidth",
            "flop_per_token",
            "peak_flops",
            "overhead",
            "memory",
            "reserved",
            "num_blocks",
            "block_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_partial_prefills",
            "long_prefill_threshold",
            "watermark",
            "ttft_s",
            "tpot_s",
            "e2e_s",
            "combine",
            "kv_read",
            "prefix_caching",
            "batching",
            "policy",
            "preemption",
            "wait_for_full",
            "aging",
            "reserve",
            "victim",
        ] {
            assert_eq!(refused(name, &negative).map(|r| r.0).as_deref(), Some(name));
            assert!(refused(name, &Value::None).is_none(), "None leaves {name} alone");
        }
        assert!(refused("block_size", &Value::Whole(257)).is_some());
        assert!(refused("block_size", &Value::Whole(0)).is_some());
        assert!(refused("watermark", &Value::Real(1.0)).is_some());
        assert!(refused("bandwidth", &Value::Real(f64::INFINITY)).is_some());
        assert_eq!(refused("blocks", &Value::Whole(1)).map(|r| r.0).as_deref(), Some("option"));
    }

    #[test]
    fn test_what_comes_later_says_so_and_unknown_names_list_the_known() {
        let range =
            |name: &str, value: &str| refused(name, &Value::Name(value.to_owned())).map(|r| r.1).unwrap_or_default();
        assert!(range("batching", "dynamic").contains("serial, static, continuous, mixed"));
        assert_eq!(range("policy", "edf"), "fcfs, sjf for now; the others come later");
        assert!(range("preemption", "swap").ends_with("come later"));
        assert_eq!(range("combine", "min"), "one of max, sum");
    }

    #[test]
    fn test_pool_is_what_memory_leaves_or_what_was_given() {
        let mut config = SimConfig::default();
        assert_eq!(config.pool(), Ok(26_702));
        config.num_blocks = Some(7);
        assert_eq!(config.pool(), Ok(7));
        config.num_blocks = None;
        config.memory = 20e9;
        assert_eq!(config.pool().map_err(|e| e.field), Err("memory"));
        config.memory = 1e30;
        assert!(config.pool().is_err());
    }
}

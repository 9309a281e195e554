//! Settings in: keyword arguments or a `SchedulerConfig`, to the core's configurations.
//!
//! The core knows the ranges. Here is only what it cannot see: Python types, and the value as it was given.

use octavo_core::{
    Batching, CacheConfig, ConfigError, Error, Eviction, KvGroup, Policy, Preemption, Reserve, SchedulerConfig, Victim,
};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};

use crate::arrays::Given;
use crate::errors::{Failure, Outcome};

const CACHE_FIELDS: [&str; 12] = [
    "block_size",
    "groups",
    "prefix_caching",
    "partial_hits",
    "dedupe",
    "reserve_null_block",
    "eviction",
    "hash_seed",
    "host_blocks",
    "disk_blocks",
    "events",
    "_hash_bits",
];

const SCHEDULER_FIELDS: [&str; 17] = [
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "batching",
    "policy",
    "aging",
    "bypass_limit",
    "max_partial_prefills",
    "long_prefill_threshold",
    "watermark",
    "reserve",
    "preemption",
    "victim",
    "inflight_steps",
    "num_lookahead",
    "tenant_weights",
    "max_adapters_per_step",
];

/// What was given, by field.
pub(crate) struct Options<'py>(Bound<'py, PyDict>);

impl<'py> Options<'py> {
    /// The options of a `KVCache`.
    pub(crate) fn of_cache(
        num_blocks: &Bound<'py, PyAny>,
        block_size: &Given<'py>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> Outcome<Self> {
        let given = copy(num_blocks.py(), options)?;
        refuse_unknown(&given, "KVCache", |name| CACHE_FIELDS.contains(&name))?;
        given.set_item("num_blocks", num_blocks)?;
        if let Given(Some(block_size)) = block_size {
            given.set_item("block_size", block_size)?;
        }
        Ok(Self(given))
    }

    /// The options of a `Scheduler`: its keyword arguments, or the fields of a `SchedulerConfig`.
    pub(crate) fn of_scheduler(num_blocks: &Bound<'py, PyAny>, options: Option<&Bound<'py, PyDict>>) -> Outcome<Self> {
        let known = |name: &str| (CACHE_FIELDS.contains(&name) && name != "groups") || SCHEDULER_FIELDS.contains(&name);
        let given = copy(num_blocks.py(), options)?;
        refuse_unknown(&given, "Scheduler", known)?;
        if num_blocks.getattr_opt("max_num_batched_tokens")?.is_none() {
            given.set_item("num_blocks", num_blocks)?;
            return Ok(Self(given));
        }
        if given.iter().any(|(name, _)| name.to_string() != "_hash_bits") {
            return Err(
                PyTypeError::new_err("Scheduler() takes a SchedulerConfig or keyword arguments, not both").into()
            );
        }
        for name in CACHE_FIELDS.iter().chain(&SCHEDULER_FIELDS).chain(&["num_blocks"]) {
            if let Some(value) = num_blocks.getattr_opt(*name)? {
                given.set_item(name, value)?;
            }
        }
        Ok(Self(given))
    }

    /// The core's configuration of a cache.
    pub(crate) fn cache(&self) -> Outcome<CacheConfig> {
        let default = CacheConfig::new(0);
        Ok(CacheConfig {
            num_blocks: self.integer("num_blocks", default.num_blocks)?,
            block_size: self.integer("block_size", default.block_size)?,
            groups: self.groups()?.unwrap_or(default.groups),
            prefix_caching: self.flag("prefix_caching", default.prefix_caching)?,
            partial_hits: self.flag("partial_hits", default.partial_hits)?,
            dedupe: self.flag("dedupe", default.dedupe)?,
            reserve_null_block: self.flag("reserve_null_block", default.reserve_null_block)?,
            eviction: self.name("eviction", default.eviction, Eviction::from_name)?,
            hash_seed: self.seed("hash_seed", default.hash_seed)?,
            hash_bits: self.integer("_hash_bits", default.hash_bits)?,
            host_blocks: self.integer("host_blocks", default.host_blocks)?,
            disk_blocks: self.integer("disk_blocks", default.disk_blocks)?,
            events: self.flag("events", default.events)?,
        })
    }

    /// The core's configuration of a scheduler.
    pub(crate) fn scheduler(&self) -> Outcome<SchedulerConfig> {
        let default = SchedulerConfig::new(0);
        self.refuse_tenant_weights()?;
        Ok(SchedulerConfig {
            cache: self.cache()?,
            max_num_seqs: self.integer("max_num_seqs", default.max_num_seqs)?,
            max_num_batched_tokens: self.integer("max_num_batched_tokens", default.max_num_batched_tokens)?,
            max_model_len: self.integer("max_model_len", default.max_model_len)?,
            batching: self.name("batching", default.batching, Batching::from_name)?,
            policy: self.name("policy", default.policy, Policy::from_name)?,
            aging: self.real("aging", default.aging)?,
            bypass_limit: self.integer("bypass_limit", default.bypass_limit)?,
            max_partial_prefills: self.integer("max_partial_prefills", default.max_partial_prefills)?,
            long_prefill_threshold: self.integer("long_prefill_threshold", default.long_prefill_threshold)?,
            watermark: self.real("watermark", default.watermark)?,
            reserve: self.name("reserve", default.reserve, Reserve::from_name)?,
            preemption: self.name("preemption", default.preemption, Preemption::from_name)?,
            victim: self.name("victim", default.victim, Victim::from_name)?,
            inflight_steps: self.integer("inflight_steps", default.inflight_steps)?,
            num_lookahead: self.integer("num_lookahead", default.num_lookahead)?,
            max_adapters_per_step: self.integer("max_adapters_per_step", default.max_adapters_per_step)?,
        })
    }

    /// The core's refusal, with the value as it was given in place of its text.
    pub(crate) fn refusal(&self, error: Error) -> Failure {
        match error {
            Error::Config(ConfigError { field, value, range }) => match self.get(field) {
                Ok(Some(given)) => Failure::Config { field, value: given.unbind(), range },
                Ok(None) | Err(_) => Failure::Core(Error::Config(ConfigError { field, value, range })),
            },
            other => Failure::Core(other),
        }
    }

    fn get(&self, field: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.get_item(field)
    }

    /// An integer; one that 64 bits cannot hold becomes the nearest that they do, which the core refuses as well.
    fn integer(&self, field: &'static str, default: i64) -> Outcome<i64> {
        let Some(value) = self.get(field)? else {
            return Ok(default);
        };
        let wrong = || Failure::Config { field, value: value.clone().unbind(), range: "an integer".to_owned() };
        if value.is_instance_of::<PyBool>() {
            return Err(wrong());
        }
        match value.extract::<i64>() {
            Ok(integer) => Ok(integer),
            Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
                Ok(if value.lt(0)? { i64::MIN } else { i64::MAX })
            }
            Err(_) => Err(wrong()),
        }
    }

    fn seed(&self, field: &'static str, default: u64) -> Outcome<u64> {
        let Some(value) = self.get(field)? else {
            return Ok(default);
        };
        let seed = if value.is_instance_of::<PyBool>() { None } else { value.extract::<u64>().ok() };
        seed.ok_or_else(|| Failure::Config { field, value: value.unbind(), range: "0 ..= 2^64 - 1".to_owned() })
    }

    fn real(&self, field: &'static str, default: f64) -> Outcome<f64> {
        let Some(value) = self.get(field)? else {
            return Ok(default);
        };
        let real = if value.is_instance_of::<PyBool>() { None } else { value.extract::<f64>().ok() };
        real.ok_or_else(|| Failure::Config { field, value: value.unbind(), range: "a number".to_owned() })
    }

    fn flag(&self, field: &'static str, default: bool) -> Outcome<bool> {
        let Some(value) = self.get(field)? else {
            return Ok(default);
        };
        let flag = value.cast::<PyBool>().ok().map(PyBoolMethods::is_true);
        flag.ok_or_else(|| Failure::Config { field, value: value.unbind(), range: "True or False".to_owned() })
    }

    fn name<T>(
        &self,
        field: &'static str,
        default: T,
        from_name: impl Fn(&str) -> Result<T, ConfigError>,
    ) -> Outcome<T> {
        let Some(value) = self.get(field)? else {
            return Ok(default);
        };
        let text = value.cast::<PyString>().ok().map(|text| text.to_string_lossy().into_owned());
        // What is no text is refused like a name that does not exist: with the names that do.
        from_name(text.as_deref().unwrap_or_default()).map_err(|error| self.refusal(Error::Config(error)))
    }

    fn groups(&self) -> Outcome<Option<Vec<KvGroup>>> {
        let Some(value) = self.get("groups")? else {
            return Ok(None);
        };
        let read = || -> PyResult<Vec<KvGroup>> {
            let group = |item: PyResult<Bound<'_, PyAny>>| -> PyResult<KvGroup> {
                Ok(KvGroup { window: item?.getattr("window")?.extract()? })
            };
            value.try_iter()?.take(MAX_GROUPS).map(group).collect()
        };
        read().map(Some).map_err(|_| Failure::Config {
            field: "groups",
            value: value.clone().unbind(),
            range: "a tuple of KVGroup".to_owned(),
        })
    }

    /// The core has no tenants yet; an empty mapping is what it does.
    fn refuse_tenant_weights(&self) -> Outcome<()> {
        let Some(value) = self.get("tenant_weights")? else {
            return Ok(());
        };
        let is_empty = value.hasattr("keys")? && value.len().is_ok_and(|length| length == 0);
        if is_empty {
            return Ok(());
        }
        let range = "empty for now; the rest comes later".to_owned();
        Err(Failure::Config { field: "tenant_weights", value: value.unbind(), range })
    }
}

/// More groups than this are not read; the core refuses fewer.
const MAX_GROUPS: usize = 64;

fn copy<'py>(py: Python<'py>, options: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyDict>> {
    options.map_or_else(|| Ok(PyDict::new(py)), PyDictMethods::copy)
}

fn refuse_unknown(options: &Bound<'_, PyDict>, class: &str, known: impl Fn(&str) -> bool) -> Outcome<()> {
    match options.iter().map(|(name, _)| name.to_string()).find(|name| !known(name)) {
        None => Ok(()),
        Some(name) => {
            let message = format!("{class}() got an unexpected keyword argument '{name}'");
            Err(PyTypeError::new_err(message).into())
        }
    }
}

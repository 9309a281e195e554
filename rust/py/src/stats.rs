//! The core's numbers as frozen objects: attributes, equality, a dictionary.

use octavo_core::{CacheStats as CoreCacheStats, SchedulerStats as CoreSchedulerStats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident from $core:ident { $($(#[$field_doc:meta])* $field:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[pyclass(frozen, get_all, eq, module = "octavo._core")]
        #[derive(PartialEq)]
        pub(crate) struct $name { $($(#[$field_doc])* $field: u64),+ }

        impl From<$core> for $name {
            // No `..`: a number that the core adds must be given a name here.
            fn from($core { $($field),+ }: $core) -> Self {
                Self { $($field),+ }
            }
        }

        #[pymethods]
        impl $name {
            /// The numbers by name.
            fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let numbers = PyDict::new(py);
                $(numbers.set_item(stringify!($field), self.$field)?;)+
                Ok(numbers)
            }

            fn __repr__(&self) -> String {
                let numbers = [$(format!("{}={}", stringify!($field), self.$field)),+];
                format!("{}({})", stringify!($name), numbers.join(", "))
            }
        }
    };
}

numbers! {
    /// Exact numbers about a `KVCache`, derived from its state.
    CacheStats from CoreCacheStats {
        /// Blocks in the pool.
        num_blocks,
        /// Blocks that can be given out at all.
        usable,
        /// Blank blocks.
        blank,
        /// Published blocks that nobody holds.
        cached,
        /// Blocks that somebody holds.
        held,
        /// Freed blocks that wait for a step in flight.
        fenced,
        /// Blank and evictable blocks.
        available,
        /// Cached blocks that wait for a step in flight.
        guarded,
        /// Open sequences.
        sequences,
        /// Steps in flight.
        open_steps,
        /// Tokens that were looked up.
        prefix_queries,
        /// Tokens of them that were found.
        prefix_hits,
        /// Blocks made findable so far.
        published_blocks,
        /// Blocks merged with an equal one so far.
        merged_blocks,
        /// Cached blocks evicted for reuse so far.
        evicted_blocks,
        /// Copies made so far.
        copies,
        /// Candidates whose hash agreed and whose content did not.
        hash_collisions,
    }
}

numbers! {
    /// Exact numbers about a `Scheduler`: its state, and what it counted.
    SchedulerStats from CoreSchedulerStats {
        /// Blocks in the pool.
        num_blocks,
        /// Blocks that can be given out at all.
        usable,
        /// Blank blocks.
        blank,
        /// Published blocks that nobody holds.
        cached,
        /// Blocks that somebody holds.
        held,
        /// Freed blocks that wait for a step in flight.
        fenced,
        /// Blank and evictable blocks.
        available,
        /// Cached blocks that wait for a step in flight.
        guarded,
        /// Tokens looked up by first admissions.
        prefix_queries,
        /// Tokens of them that were found.
        prefix_hits,
        /// Blocks made findable so far.
        published_blocks,
        /// Blocks merged with an equal one so far.
        merged_blocks,
        /// Cached blocks evicted for reuse so far.
        evicted_blocks,
        /// Copies made so far.
        copies,
        /// Candidates whose hash agreed and whose content did not.
        hash_collisions,
        /// Requests not ended and not running.
        waiting,
        /// Sequences in the batch.
        running,
        /// Requests whose handles are alive.
        requests,
        /// Plans returned.
        steps,
        /// Plans out.
        plans_out,
        /// Tokens in committed plans.
        scheduled_tokens,
        /// Times that a running sequence lost its blocks.
        preemptions,
        /// Tokens computed again after that.
        recomputed_tokens,
        /// Tokens looked up by admissions after a preemption.
        resumed_queries,
        /// Tokens of them that were found.
        resumed_hits,
        /// Sequences that ended.
        finished,
    }
}

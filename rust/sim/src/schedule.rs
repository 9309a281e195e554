//! How a run schedules: the batchings by the names that users know, and what goes with them.

use octavo_core::{Policy, Reserve, Victim};

/// How prompts and decodes share a pass (`serial` is the simulator's name; the rest is the core's).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batching {
    /// One request at a time.
    Serial,
    /// A batch begins together and runs to its longest member.
    Static,
    /// One whole prompt alone, or all decodes.
    Continuous,
    /// Whole prompts in the same pass as the decodes.
    Mixed,
    /// Decodes first; prompts in chunks fill the rest of the token budget.
    #[default]
    Chunked,
}

impl Batching {
    /// All of them, in the order in which they were invented.
    pub const ALL: [Self; 5] = [Self::Serial, Self::Static, Self::Continuous, Self::Mixed, Self::Chunked];

    /// The name in flags and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Static => "static",
            Self::Continuous => "continuous",
            Self::Mixed => "mixed",
            Self::Chunked => "chunked",
        }
    }

    /// What the core does for it.
    #[must_use]
    pub const fn in_core(self) -> octavo_core::Batching {
        match self {
            Self::Static => octavo_core::Batching::Static,
            Self::Serial | Self::Continuous => octavo_core::Batching::Continuous,
            Self::Mixed => octavo_core::Batching::Mixed,
            Self::Chunked => octavo_core::Batching::Chunked,
        }
    }
}

/// Who runs in a pass, and on how much memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// How prompts and decodes share a pass.
    pub batching: Batching,
    /// Whether a static batch waits until it is full, or until nobody comes any more.
    pub wait_for_full: bool,
    /// Who goes first.
    pub policy: Policy,
    /// Rank gained per second of waiting.
    pub aging: f64,
    /// How many blocks an admission takes.
    pub reserve: Reserve,
    /// Who loses its blocks when they are short.
    pub victim: Victim,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            batching: Batching::default(),
            wait_for_full: false,
            policy: Policy::Fcfs,
            aging: 0.0,
            reserve: Reserve::OnDemand,
            victim: Victim::Latest,
        }
    }
}

impl Schedule {
    /// Whether a batch may not begin yet although somebody waits.
    #[must_use]
    pub const fn waits_for_full(&self) -> bool {
        self.wait_for_full && matches!(self.batching, Batching::Static)
    }
}

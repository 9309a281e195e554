//! KV groups: layers that share one block table.
//!
//! Tables, changes and hits carry a group axis from the start; for now there is exactly one group, of full attention.

use crate::error::ConfigError;

/// One KV group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvGroup {
    /// How many tokens back a layer of this group attends; `None` is full attention.
    pub window: Option<i64>,
}

/// The number of groups that a cache has in this form.
pub(crate) const NUM_GROUPS: usize = 1;

/// Accepts one group of full attention, and refuses the rest by name.
pub(crate) fn check(groups: &[KvGroup]) -> Result<(), ConfigError> {
    match groups {
        [KvGroup { window: None }] => Ok(()),
        [KvGroup { window: Some(window) }] => Err(ConfigError::new(
            "groups",
            format!("KVGroup(window={window})"),
            "window=None; windowed groups come later",
        )),
        _ => {
            Err(ConfigError::new("groups", format!("{} groups", groups.len()), "one group; several groups come later"))
        }
    }
}

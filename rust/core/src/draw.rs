//! A picture of the blocks in text, for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::cache::Cache;
use crate::ids::BlockId;
use crate::slot::State;
use crate::table::Table;

const PER_LINE: usize = 16;
const LETTERS: &[u8; 52] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Draws the pool, and the sequences that hold tables, each with the number of its computed tokens.
///
/// `.` blank, `=` cached, `~` fenced, a letter the one sequence that names the block, `#` one beyond the 52nd, `+`
/// several, `>` a copy's source or a pinned block that no table names, `0` the
/// null block. O(blocks).
pub(crate) fn draw<'a>(cache: &Cache, sequences: impl Iterator<Item = (&'a Table, usize)>) -> String {
    let pool = cache.pool();
    let (num_blocks, block_size) = (cache.num_blocks(), cache.block_size());
    let mut names = BTreeMap::<BlockId, char>::new();
    let mut legend = String::new();
    for (index, (table, num_tokens)) in sequences.enumerate() {
        let letter = LETTERS.get(index).map(|&letter| char::from(letter));
        for &block in table.blocks() {
            names.entry(block).and_modify(|name| *name = '+').or_insert(letter.unwrap_or('#'));
        }
        if let Some(letter) = letter {
            let ids: Vec<String> = table.blocks().iter().map(|block| block.get().to_string()).collect();
            let slots = table.len() * block_size;
            let line = format!(
                "{letter}: {num_tokens} tokens in {} blocks ({}), {} of {slots} slots unused\n",
                table.len(),
                ids.join(" "),
                slots - num_tokens,
            );
            legend.push_str(&line);
        }
    }
    let mut picture = format!(
        "{num_blocks} blocks x {block_size} tokens: {} held, {} cached, {} fenced, {} blank\n",
        pool.num_held(),
        pool.num_cached(),
        pool.num_fenced(),
        pool.num_blank(),
    );
    for start in (0..num_blocks).step_by(PER_LINE) {
        let blocks = (start..num_blocks.min(start + PER_LINE)).map(BlockId::new);
        let null = num_blocks - pool.num_usable();
        let mark = |block: BlockId| {
            if block.index() < null { '0' } else { symbol(pool.state(block), names.get(&block)) }
        };
        let line: String = blocks.map(mark).collect();
        // Writing to a string does not fail.
        _ = writeln!(picture, "{start:>5} {line}");
    }
    picture + &legend
}

fn symbol(state: State, name: Option<&char>) -> char {
    match state {
        State::Blank => '.',
        State::Cached => '=',
        State::Fenced => '~',
        State::Held { .. } => name.copied().unwrap_or('>'),
    }
}

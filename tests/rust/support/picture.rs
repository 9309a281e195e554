//! The picture of the blocks in text.

use super::pool::Pool;

/// A sequence as the picture needs it.
pub struct Shown {
    pub table: Vec<i32>,
    pub num_tokens: usize,
}

pub fn draw(pool: &Pool, sequences: &[Shown]) -> String {
    let tally = pool.tally();
    let mut lines = vec![format!(
        "{} blocks x {} tokens: {} held, {} cached, {} fenced, {} blank",
        pool.num_blocks, pool.block_size, tally.held, tally.cached, tally.fenced, tally.blank
    )];
    for first in (0..pool.num_blocks).step_by(16) {
        let last = (first + 16).min(pool.num_blocks);
        let row: String = (first..last).map(|block| mark(pool, sequences, block as i32)).collect();
        lines.push(format!("{first:>5} {row}"));
    }
    for (index, sequence) in sequences.iter().enumerate().take(52) {
        let ids: Vec<String> = sequence.table.iter().map(ToString::to_string).collect();
        let slots = sequence.table.len() * pool.block_size;
        lines.push(format!(
            "{}: {} tokens in {} blocks ({}), {} of {} slots unused",
            letter(index),
            sequence.num_tokens,
            sequence.table.len(),
            ids.join(" "),
            slots - sequence.num_tokens,
            slots,
        ));
    }
    lines.join("\n")
}

fn mark(pool: &Pool, sequences: &[Shown], block: i32) -> char {
    let mut holders = sequences
        .iter()
        .enumerate()
        .flat_map(|(index, sequence)| sequence.table.iter().filter(|&&entry| entry == block).map(move |_| index));
    match (holders.next(), holders.next()) {
        (Some(_), Some(_)) => '+',
        (Some(index), None) => letter(index),
        _ if block < pool.first => '0',
        _ if pool.count(block) > 0 => '>',
        _ if pool.is_cached(block) => '=',
        _ if pool.is_fenced(block) => '~',
        _ => '.',
    }
}

fn letter(index: usize) -> char {
    match index {
        0..26 => (b'A' + index as u8) as char,
        26..52 => (b'a' + (index - 26) as u8) as char,
        _ => '#',
    }
}

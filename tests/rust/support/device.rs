//! A device that does what plans say: it keeps its own tables from their changes, copies, and writes to slots.
//!
//! What a slot holds stands for the whole history of its token, as the keys and values of a real model do. A pass runs as
//! late as it may, right before its commit; what it must not touch is checked when the plan comes.

use std::collections::{BTreeMap, VecDeque};

use octavo_core::StepPlan;

/// A plan, kept after the buffer it came in was used again.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    pub number: u64,
    pub seqs: Vec<i64>,
    pub rows: Vec<i32>,
    pub num_tokens: Vec<i32>,
    pub token_ids: Vec<i32>,
    pub token_source: Vec<[i32; 3]>,
    pub positions: Vec<i32>,
    pub slots: Vec<i64>,
    pub seq_lens: Vec<i32>,
    pub sample: Vec<i32>,
    pub table_changes: Vec<[i32; 4]>,
    pub copies: Vec<[i32; 3]>,
}

impl From<&StepPlan> for Pass {
    fn from(plan: &StepPlan) -> Self {
        Self {
            number: plan.number(),
            seqs: plan.seqs().to_vec(),
            rows: plan.rows().to_vec(),
            num_tokens: plan.num_tokens().to_vec(),
            token_ids: plan.token_ids().to_vec(),
            token_source: plan.token_source().to_vec(),
            positions: plan.positions().to_vec(),
            slots: plan.slot_mapping().to_vec(),
            seq_lens: plan.seq_lens().to_vec(),
            sample: plan.sample().to_vec(),
            table_changes: plan.table_changes().to_vec(),
            copies: plan.copies().to_vec(),
        }
    }
}

/// What the tables of the rows are, as far as plans have said.
#[derive(Clone, Debug, Default)]
struct Mirror {
    blocks: BTreeMap<(i32, i32), i32>,
}

impl Mirror {
    fn replay(&mut self, changes: &[[i32; 4]]) {
        for (at, &[group, row, index, block]) in changes.iter().enumerate() {
            assert_eq!(group, 0);
            let is_twice = changes[..at].iter().any(|other| other[1..3] == [row, index]);
            assert!(!is_twice, "L8: row {row}, index {index} twice in a plan");
            self.blocks.insert((row, index), block);
        }
    }

    fn slot(&self, row: i32, position: i32, block_size: i32) -> usize {
        let block = self.blocks.get(&(row, position / block_size)).expect("L8: the block was listed");
        (block * block_size + position % block_size) as usize
    }
}

/// What a plan that is out touches: whose row reads a slot (-1 for a copy), and whose writes it.
#[derive(Clone, Debug, Default)]
struct Touched {
    reads: Vec<(usize, i32)>,
    writes: Vec<(usize, i32)>,
}

#[derive(Clone, Debug)]
pub struct Device {
    block_size: i32,
    content: Vec<u64>,
    /// As of the newest plan, and as of the newest that ran.
    newest: Mirror,
    mirror: Mirror,
    /// Plans that did not run yet, oldest first; nothing is left of a void one but its table changes.
    out: VecDeque<(Pass, Option<Touched>)>,
    /// Sampled tokens by plan.
    answers: BTreeMap<u64, Vec<i32>>,
}

impl Device {
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        Self {
            block_size: block_size as i32,
            content: vec![0; num_blocks * block_size],
            newest: Mirror::default(),
            mirror: Mirror::default(),
            out: VecDeque::new(),
            answers: BTreeMap::new(),
        }
    }

    /// What the plans say a row's table is (L8).
    pub fn block(&self, row: usize, index: usize) -> Option<i32> {
        self.newest.blocks.get(&(row as i32, index as i32)).copied()
    }

    /// A plan was returned. It may write nothing that it, or another plan out, reads for another row (L3, L4, L7).
    pub fn receive(&mut self, pass: Pass) {
        self.newest.replay(&pass.table_changes);
        let touched = self.touched(&pass);
        for &(slot, row) in &touched.writes {
            let clash = |&(other, reader): &(usize, i32)| other == slot && reader != row;
            assert!(!touched.reads.iter().any(clash), "L4: slot {slot} is read before it is computed");
            assert!(touched.writes.iter().filter(|&&(other, _)| other == slot).count() == 1, "L3: slot {slot}");
            for (earlier, its) in self.out.iter().filter_map(|(pass, its)| Some((pass, its.as_ref()?))) {
                let is_reused = its.reads.iter().any(clash) || its.writes.iter().any(clash);
                assert!(!is_reused, "L7: plan {} still uses slot {slot}, which row {row} writes", earlier.number);
            }
        }
        self.out.push_back((pass, Some(touched)));
    }

    fn touched(&self, pass: &Pass) -> Touched {
        let mut touched = Touched::default();
        let mut next = 0;
        for (place, &row) in pass.rows.iter().enumerate() {
            for position in 0..pass.seq_lens[place] {
                touched.reads.push((self.newest.slot(row, position, self.block_size), row));
            }
            for _ in 0..pass.num_tokens[place] {
                let slot = self.newest.slot(row, pass.positions[next], self.block_size);
                assert_eq!(pass.slots[next], slot as i64, "the slot is that of the table");
                touched.writes.push((slot, row));
                next += 1;
            }
        }
        for &[src, dst, num_tokens] in &pass.copies {
            let change = pass.table_changes.iter().find(|change| change[3] == dst);
            let row = change.expect("a copy's target is new in a table")[1];
            for offset in 0..num_tokens {
                touched.reads.push(((src * self.block_size + offset) as usize, -1));
                touched.writes.push(((dst * self.block_size + offset) as usize, row));
            }
        }
        touched
    }

    /// Runs the oldest plan. `truth` gives what a sequence begins from, and its tokens while it has not ended: its
    /// context must be exactly that. Returns what each sampler saw last.
    pub fn run(&mut self, truth: impl Fn(i64) -> (u64, Option<Vec<i32>>)) -> Vec<u64> {
        let pass = loop {
            let (pass, touched) = self.out.pop_front().expect("a plan is out");
            self.mirror.replay(&pass.table_changes);
            if touched.is_some() {
                break pass;
            }
        };
        for &[src, dst, num_tokens] in &pass.copies {
            let (src, dst) = ((src * self.block_size) as usize, (dst * self.block_size) as usize);
            self.content.copy_within(src..src + num_tokens as usize, dst);
        }
        let mut tokens = pass.token_ids.clone();
        for &[at, plan, index] in &pass.token_source {
            assert_eq!(tokens[at as usize], 0, "unknown");
            tokens[at as usize] = self.answers[&(plan as u64)][index as usize];
        }
        let mut next = 0;
        for (place, &row) in pass.rows.iter().enumerate() {
            let (seed, known) = truth(pass.seqs[place]);
            for _ in 0..pass.num_tokens[place] {
                let (position, token) = (pass.positions[next], tokens[next]);
                let before = match position.checked_sub(1) {
                    Some(before) if before >= 0 => self.content[self.mirror.slot(row, before, self.block_size)],
                    _ => seed,
                };
                self.content[pass.slots[next] as usize] = history(before, token);
                next += 1;
            }
            if let Some(known) = known {
                self.compare_context(row, pass.seq_lens[place], seed, &known);
            }
        }
        pass.sample.iter().map(|&at| self.content[pass.slots[at as usize] as usize]).collect()
    }

    fn compare_context(&self, row: i32, length: i32, seed: u64, tokens: &[i32]) {
        assert!(length as usize <= tokens.len(), "every token of the context is known by now");
        let mut expected = seed;
        for position in 0..length {
            expected = history(expected, tokens[position as usize]);
            let found = self.content[self.mirror.slot(row, position, self.block_size)];
            assert_eq!(found, expected, "the theorem: row {row}, position {position}");
        }
    }

    /// What was sampled in a plan that ran.
    pub fn answer(&mut self, number: u64, tokens: &[i32]) {
        self.answers.insert(number, tokens.to_vec());
        self.answers.retain(|&plan, _| plan + 8 > number);
    }

    /// A plan and all later ones failed: whatever they would have written is spoilt.
    pub fn void(&mut self, number: u64) {
        for (pass, touched) in &mut self.out {
            if pass.number >= number {
                for (slot, _) in touched.take().into_iter().flat_map(|touched| touched.writes) {
                    self.content[slot] = u64::MAX;
                }
            }
        }
    }
}

/// What stands for a token behind all that came before it.
pub fn history(before: u64, token: i32) -> u64 {
    let mixed = (before ^ (token as u64 + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

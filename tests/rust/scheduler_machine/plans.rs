//! Steps, commits and cancels on all sides, and on the device.

use octavo_core::{Outcome, SequenceId};

use super::calls::Manner;
use super::compare::{compare_decision, compare_plan, ending};
use super::trio::Trio;
use crate::support::bridge;
use crate::support::device::Pass;
use crate::support::scheduler::ModelOutcome;
use crate::support::scheduler::plan::ModelPlan;

impl Trio {
    pub fn step(&mut self, now: f64) {
        let expected = self.model.step(now);
        let found = self.core.step(now, &mut self.plan).map_err(|error| bridge::fault(&error));
        assert_eq!(found, expected.as_ref().map(Option::is_some).map_err(|fault| *fault), "step");
        let decided = self.decider.decide(now).map_err(|error| bridge::fault(&error));
        assert_eq!(decided.as_ref().map(Option::is_some).map_err(|fault| *fault), found, "decide alone");
        if let Ok(Some(decision)) = decided {
            compare_decision(decision, &self.plan);
        }
        if found.is_ok() {
            self.now = now;
        }
        match &expected {
            Ok(Some(plan)) => self.count_plan(plan),
            Ok(None) => self.census.add("step: None", 1),
            Err(_) => self.census.add("step: refused", 1),
        }
        if let Ok(Some(plan)) = expected {
            compare_plan(self, &plan);
            self.device.receive(Pass::from(&self.plan));
            self.compare_mirror();
        }
        if found.is_ok() {
            assert_eq!(self.core.table_width(), self.model.table_width());
            assert_eq!(self.core.block_tables(0), Some(self.model.block_tables.as_slice()), "block_tables");
        }
    }

    /// What an engine knows of the tables must be enough (L8).
    fn compare_mirror(&self) {
        for row in 0..self.model.world.max_num_seqs {
            for (index, &block) in self.model.row_table(row).iter().enumerate() {
                assert_eq!(self.device.block(row, index), Some(block), "L8: row {row}, index {index}");
            }
        }
    }

    fn count_plan(&mut self, plan: &ModelPlan) {
        let placed = plan.seqs.len();
        let others_out = self.model.out_numbers().len() - 1;
        for (what, times) in [
            ("plan", 1),
            ("plan: empty", usize::from(placed == 0)),
            ("plan: with others out", usize::from(others_out > 0)),
            ("plan: preempts and computes", usize::from(placed > 0 && !plan.preempted.is_empty())),
            ("plan: preempts with others out", usize::from(others_out > 0 && !plan.preempted.is_empty())),
            ("row: decode", plan.num_decodes),
            ("row: prompt", placed - plan.num_decodes),
            ("row: not sampling", placed.saturating_sub(plan.sample_seqs.len())),
            ("token unknown", plan.token_source.len()),
            ("copy", plan.copies.len()),
            ("samples of a prompt of several", plan.sample_seqs.len().saturating_sub(placed)),
            ("admitted", plan.admitted.len()),
            ("resumed", plan.resumed.len()),
            ("preempted", plan.preempted.len()),
            ("table change", plan.table_changes.len()),
        ] {
            self.census.add(what, times);
        }
    }

    pub fn commit(&mut self, tokens: &[i32], manner: Manner) {
        let num_samplers = self.model.num_samplers();
        let mut tokens = tokens[..num_samplers].to_vec();
        let newest = self.model.num_plans().saturating_sub(1);
        let mut number = self.model.out_numbers().first().copied().unwrap_or(newest);
        let mut counts = None;
        match manner {
            Manner::Plain => {}
            Manner::WithCounts => counts = Some(vec![1; num_samplers]),
            Manner::OldPlan => number = number.wrapping_sub(1),
            Manner::NextPlan => number += 1,
            Manner::TooMany => tokens.push(0),
            Manner::TooFew => drop(tokens.pop()),
            Manner::NegativeToken => tokens.iter_mut().for_each(|token| *token = -1),
            Manner::WrongCounts => counts = Some(vec![2; num_samplers]),
            Manner::ShortCounts => counts = Some(vec![1; num_samplers + 1]),
        }
        let before = self.model.clone();
        let expected = self.model.commit(number, &tokens, counts.as_deref());
        if expected.is_ok() {
            let (names, seeds) = (&self.names, &self.seeds);
            self.device.run(|raw| {
                let seq = names[&raw];
                let known = before.is_alive(seq).then(|| before.tokens(seq).expect("alive").to_vec());
                (seeds[seq], known)
            });
            self.device.answer(number, &tokens);
        }
        let mut outcome = Outcome::default();
        let found = self.core.commit(number, &tokens, counts.as_deref(), &mut outcome);
        let found = found.map(|()| self.outcome(&outcome)).map_err(|error| bridge::fault(&error));
        assert_eq!(found, expected, "commit");
        match &expected {
            Ok(outcome) => {
                self.census.add("commit: accepted", 1);
                for (_, ending) in &outcome.finished {
                    self.census.add(&format!("end: {ending:?}"), 1);
                }
            }
            Err(fault) => self.census.add(&format!("commit: {fault:?}"), 1),
        }
        let mut second = Outcome::default();
        let decided = self.decider.commit(number, &tokens, counts.as_deref(), &mut second);
        let decided = decided.map(|()| self.outcome(&second)).map_err(|error| bridge::fault(&error));
        assert_eq!(decided, expected, "L13");
    }

    pub fn cancel(&mut self, back: usize) {
        let out = self.model.out_numbers();
        let number = out.iter().rev().nth(back).copied();
        let number = number.unwrap_or_else(|| self.model.num_plans().wrapping_add(back as u64).wrapping_sub(3));
        let expected = self.model.cancel(number);
        let found = [self.core.cancel(number), self.decider.cancel(number)];
        self.census.add(&format!("cancel: {}", expected.map_or("refused", |()| "accepted")), 1);
        Self::agree("cancel", expected, found);
        if expected.is_ok() {
            self.device.void(number);
        }
    }

    fn outcome(&self, outcome: &Outcome) -> ModelOutcome {
        let name = |seq: &SequenceId| self.names[&seq.raw()];
        let reasons = outcome.reasons.iter().map(|&reason| ending(reason));
        ModelOutcome {
            seqs: outcome.seqs.iter().map(name).collect(),
            indptr: outcome.indptr.clone(),
            tokens: outcome.tokens.clone(),
            finished: outcome.finished.iter().map(name).zip(reasons).collect(),
        }
    }
}

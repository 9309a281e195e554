//! A step as arrays, in one contiguous buffer (CONTRACT §3.5).
//!
//! Each array is a section of the buffer, 8-byte aligned, so that an engine copies or sends the whole in one go and
//! reads it back by the layout. The buffer is written by `fill` and read-only for everybody else.

use bytemuck::{cast_slice, cast_slice_mut};

use crate::error::RequestError;

/// The element type of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// `int32`.
    I32,
    /// `int64`.
    I64,
}

impl Dtype {
    /// Bytes in an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I32 => 4,
            Self::I64 => 8,
        }
    }
}

/// One array in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name in CONTRACT §3.5.
    pub name: &'static str,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Where it begins, in bytes; a multiple of 8.
    pub offset: usize,
    /// Its length along the first axis.
    pub len: usize,
    /// Its width along the second axis; `None` for one axis.
    pub width: Option<usize>,
}

impl Section {
    /// Elements in all.
    #[must_use]
    pub const fn size(&self) -> usize {
        match self.width {
            Some(width) => self.len * width,
            None => self.len,
        }
    }

    const fn num_words(&self) -> usize {
        (self.size() * self.dtype.size()).div_ceil(8)
    }
}

/// How long the arrays of a plan are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) seqs: usize,
    pub(crate) decodes: usize,
    pub(crate) padded: usize,
    pub(crate) tokens: usize,
    pub(crate) samples: usize,
    pub(crate) unknown: usize,
    pub(crate) table_changes: usize,
    pub(crate) copies: usize,
    pub(crate) admitted: usize,
    pub(crate) resumed: usize,
    pub(crate) preempted: usize,
    pub(crate) ended: usize,
}

/// The arrays of a plan, to be written.
pub(crate) struct Arrays<'a> {
    pub(crate) seqs: &'a mut [i64],
    pub(crate) rows: &'a mut [i32],
    pub(crate) num_tokens: &'a mut [i32],
    pub(crate) query_start: &'a mut [i32],
    pub(crate) token_ids: &'a mut [i32],
    pub(crate) token_source: &'a mut [[i32; 3]],
    pub(crate) positions: &'a mut [i32],
    pub(crate) slot_mapping: &'a mut [i64],
    pub(crate) seq_lens: &'a mut [i32],
    pub(crate) sample: &'a mut [i32],
    pub(crate) sample_seqs: &'a mut [i64],
    pub(crate) sample_indptr: &'a mut [i32],
    pub(crate) table_changes: &'a mut [[i32; 4]],
    pub(crate) copies: &'a mut [[i32; 3]],
    pub(crate) admitted: &'a mut [i64],
    pub(crate) resumed: &'a mut [i64],
    pub(crate) preempted: &'a mut [i64],
    pub(crate) ended: &'a mut [i64],
}

/// What a step runs, as a model reads it. A caller may hand the same one to every step; its memory is used again.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    number: u64,
    num_decodes: usize,
    num_padded: usize,
    words: Vec<u64>,
    sections: Vec<Section>,
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident: $type:ty),+ $(,)?) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(&self) -> &[$type] {
            self.section(stringify!($name)).map_or(&[], |section| cast_slice(self.bytes_of(section)))
        })+
    };
}

impl StepPlan {
    /// A plan that nothing was written to.
    #[must_use]
    pub const fn new() -> Self {
        Self { number: 0, num_decodes: 0, num_padded: 0, words: Vec::new(), sections: Vec::new() }
    }

    /// Counts the plans of its scheduler from 0.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// How many of the sequences are decodes; they come first.
    #[must_use]
    pub const fn num_decodes(&self) -> usize {
        self.num_decodes
    }

    /// Rows of finished members of a static batch that a pass with decodes computes all the same.
    #[must_use]
    pub const fn num_padded(&self) -> usize {
        self.num_padded
    }

    /// The whole buffer.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        cast_slice(&self.words)
    }

    /// Where each array lies in the buffer.
    #[must_use]
    pub fn layout(&self) -> &[Section] {
        &self.sections
    }

    /// The section of this name.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    getters! {
        /// Handles, N.
        seqs: i64,
        /// Stable rows, N.
        rows: i32,
        /// Tokens to compute, N.
        num_tokens: i32,
        /// Their prefix sum, N + 1.
        query_start: i32,
        /// The flat input, T.
        token_ids: i32,
        /// Where each token stands in its sequence, T.
        positions: i32,
        /// Where each token's KV goes, T.
        slot_mapping: i64,
        /// Tokens not known yet: index in T, plan number, index in that plan's `sample`. Empty with no other plan out.
        token_source: [i32; 3],
        /// Context lengths after this step, N.
        seq_lens: i32,
        /// Indices in T behind which a token is sampled, S.
        sample: i32,
        /// Who samples, P.
        sample_seqs: i64,
        /// Where each one's indices begin in `sample`, P + 1.
        sample_indptr: i32,
        /// (group, row, index, block): with those of all earlier plans, the tables of the running rows (L8).
        table_changes: [i32; 4],
        /// (source, target, tokens), before the forward pass.
        copies: [i32; 3],
        /// Blocks to be zeroed, before the copies.
        zero: i32,
        /// Handles admitted for the first time.
        admitted: i64,
        /// Handles admitted again.
        resumed: i64,
        /// Handles that lost row and blocks.
        preempted: i64,
        /// Handles whose end took effect.
        ended: i64,
    }

    fn bytes_of(&self, section: &Section) -> &[u8] {
        &self.bytes()[section.offset..][..section.size() * section.dtype.size()]
    }

    /// Reads a plan that another process wrote: a copy of its buffer, which says itself what lies where.
    ///
    /// # Errors
    ///
    /// [`RequestError`] for bytes that are no plan's buffer, or not all of it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RequestError> {
        let no_plan = |reason: &str| RequestError::new("buffer", format!("it is not the buffer of a plan: {reason}"));
        let mut plan = Self::new();
        plan.words.resize(bytes.len().div_ceil(8), 0);
        cast_slice_mut(&mut plan.words)[..bytes.len()].copy_from_slice(bytes);
        let header: &[i64] = cast_slice(plan.words.get(..HEADER).ok_or_else(|| no_plan("it is too short"))?);
        let (number, sizes) = sizes_of(header).ok_or_else(|| no_plan("its header is another"))?;
        // A size beyond the bytes there are is found out before it is multiplied.
        if shapes(sizes).iter().any(|&(_, _, len, _)| len > bytes.len()) {
            return Err(no_plan("it lacks its end"));
        }
        if plan.lay_out(number, sizes) * 8 != bytes.len() {
            return Err(no_plan("it is longer or shorter than its header says"));
        }
        Ok(plan)
    }

    /// Notes where the arrays of these sizes lie; returns the words that they take.
    fn lay_out(&mut self, number: u64, sizes: Sizes) -> usize {
        self.number = number;
        self.num_decodes = sizes.decodes;
        self.num_padded = sizes.padded;
        self.sections.clear();
        let mut words = 0;
        for (name, dtype, len, width) in shapes(sizes) {
            let section = Section { name, dtype, offset: words * 8, len, width };
            words += section.num_words();
            self.sections.push(section);
        }
        words
    }

    /// Lays the buffer out for `sizes` and opens its arrays for writing.
    pub(crate) fn open(&mut self, number: u64, sizes: Sizes) -> Arrays<'_> {
        let words = self.lay_out(number, sizes);
        self.words.resize(words, 0);
        let mut carver = Carver { rest: &mut self.words };
        // In the order of `shapes`; struct fields are evaluated as they are written.
        carver.carve::<i64>(HEADER).copy_from_slice(&header(number, sizes));
        Arrays {
            seqs: carver.carve(sizes.seqs),
            rows: carver.carve(sizes.seqs),
            num_tokens: carver.carve(sizes.seqs),
            query_start: carver.carve(sizes.seqs + 1),
            token_ids: carver.carve(sizes.tokens),
            token_source: carver.carve(sizes.unknown),
            positions: carver.carve(sizes.tokens),
            slot_mapping: carver.carve(sizes.tokens),
            seq_lens: carver.carve(sizes.seqs),
            sample: carver.carve(sizes.samples),
            sample_seqs: carver.carve(sizes.samples),
            sample_indptr: carver.carve(sizes.samples + 1),
            table_changes: carver.carve(sizes.table_changes),
            copies: carver.carve(sizes.copies),
            admitted: carver.carve(sizes.admitted),
            resumed: carver.carve(sizes.resumed),
            preempted: carver.carve(sizes.preempted),
            ended: carver.carve(sizes.ended),
        }
    }
}

/// Words of the header: what the buffer is, the plan's number, and the sizes.
const HEADER: usize = 14;

/// "octavo 1" as a little-endian word.
const MAGIC: i64 = i64::from_le_bytes(*b"octavo 1");

#[allow(clippy::cast_possible_wrap, reason = "lengths far below 2^63")]
const fn header(number: u64, sizes: Sizes) -> [i64; HEADER] {
    let Sizes { seqs, decodes, padded, tokens, samples, unknown, table_changes, copies, .. } = sizes;
    let Sizes { admitted, resumed, preempted, ended, .. } = sizes;
    [
        MAGIC,
        number as i64,
        seqs as i64,
        decodes as i64,
        padded as i64,
        tokens as i64,
        samples as i64,
        unknown as i64,
        table_changes as i64,
        copies as i64,
        admitted as i64,
        resumed as i64,
        preempted as i64,
        ended as i64,
    ]
}

/// The plan's number and sizes as [`header`] wrote them.
fn sizes_of(header: &[i64]) -> Option<(u64, Sizes)> {
    let &[MAGIC, number, ref sizes @ ..] = header else { return None };
    let mut sizes = sizes.iter().map(|&size| usize::try_from(size));
    let mut next = || sizes.next()?.ok();
    let sizes = Sizes {
        seqs: next()?,
        decodes: next()?,
        padded: next()?,
        tokens: next()?,
        samples: next()?,
        unknown: next()?,
        table_changes: next()?,
        copies: next()?,
        admitted: next()?,
        resumed: next()?,
        preempted: next()?,
        ended: next()?,
    };
    (sizes.decodes <= sizes.seqs).then_some((u64::try_from(number).ok()?, sizes))
}

type Shape = (&'static str, Dtype, usize, Option<usize>);

/// Every array of the contract, behind the header. What is always empty in this form takes no room, wherever it stands.
fn shapes(sizes: Sizes) -> [Shape; 20] {
    use Dtype::{I32, I64};
    let Sizes { seqs, tokens, samples, .. } = sizes;
    [
        ("header", I64, HEADER, None),
        ("seqs", I64, seqs, None),
        ("rows", I32, seqs, None),
        ("num_tokens", I32, seqs, None),
        ("query_start", I32, seqs + 1, None),
        ("token_ids", I32, tokens, None),
        ("token_source", I32, sizes.unknown, Some(3)),
        ("positions", I32, tokens, None),
        ("slot_mapping", I64, tokens, None),
        ("seq_lens", I32, seqs, None),
        ("sample", I32, samples, None),
        ("sample_seqs", I64, samples, None),
        ("sample_indptr", I32, samples + 1, None),
        ("table_changes", I32, sizes.table_changes, Some(4)),
        ("copies", I32, sizes.copies, Some(3)),
        ("admitted", I64, sizes.admitted, None),
        ("resumed", I64, sizes.resumed, None),
        ("preempted", I64, sizes.preempted, None),
        ("ended", I64, sizes.ended, None),
        ("zero", I32, 0, None),
    ]
}

/// Cuts a buffer into arrays, front to back.
struct Carver<'a> {
    rest: &'a mut [u64],
}

impl<'a> Carver<'a> {
    fn carve<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&mut self, len: usize) -> &'a mut [T] {
        let words = (len * size_of::<T>()).div_ceil(8);
        let (taken, rest) = std::mem::take(&mut self.rest).split_at_mut(words);
        self.rest = rest;
        // What fills the last word up goes to other processes too: it must not be left over (L13).
        if let Some(last) = taken.last_mut() {
            *last = 0;
        }
        let bytes: &mut [u8] = cast_slice_mut(taken);
        cast_slice_mut(&mut bytes[..len * size_of::<T>()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_lie_where_the_layout_says() {
        let sizes = Sizes { seqs: 3, tokens: 5, samples: 1, table_changes: 2, ended: 1, ..Sizes::default() };
        let mut plan = StepPlan::new();
        let arrays = plan.open(7, sizes);
        arrays.seqs.copy_from_slice(&[1, 2, 3]);
        arrays.query_start.copy_from_slice(&[4, 5, 6, 7]);
        arrays.slot_mapping.fill(-1);
        arrays.table_changes.copy_from_slice(&[[8; 4], [9; 4]]);
        arrays.ended.copy_from_slice(&[10]);
        assert_eq!(plan.seqs(), [1, 2, 3]);
        assert_eq!(plan.query_start(), [4, 5, 6, 7]);
        assert_eq!(plan.slot_mapping(), [-1; 5]);
        assert_eq!(plan.table_changes(), [[8; 4], [9; 4]]);
        assert_eq!(plan.ended(), [10]);
        assert_eq!((plan.copies().len(), plan.token_source().len()), (0, 0));
        let mut end = 0;
        for section in plan.layout() {
            assert!(section.offset >= end && section.offset % 8 == 0, "{section:?} overlaps what is before");
            end = section.offset + section.size() * section.dtype.size();
        }
        assert!(end <= plan.bytes().len());
    }

    #[test]
    fn plan_is_read_back_from_its_bytes_and_from_no_others() {
        let sizes = Sizes { seqs: 3, decodes: 2, tokens: 5, samples: 1, copies: 2, ended: 1, ..Sizes::default() };
        // Padding takes no room in the buffer.
        let sizes = Sizes { padded: 9_999, ..sizes };
        let mut plan = StepPlan::new();
        plan.open(7, sizes).copies.copy_from_slice(&[[1, 2, 3], [4, 5, 6]]);
        let bytes = plan.bytes().to_vec();
        let read = StepPlan::from_bytes(&bytes).unwrap_or_else(|error| unreachable!("{error}"));
        assert_eq!((read.number(), read.num_decodes(), read.copies()), (7, 2, plan.copies()));
        assert_eq!((read.bytes(), read.layout()), (plan.bytes(), plan.layout()));
        let longer = [&bytes[..], &[0; 8]].concat();
        let mut huge = bytes.clone();
        huge[16..24].copy_from_slice(&i64::MAX.to_le_bytes());
        let mut negative = bytes.clone();
        negative[23] = 0xff;
        for bad in [&[][..], &bytes[..8], &bytes[..bytes.len() - 8], &longer, &huge, &negative, &bytes[1..]] {
            assert!(StepPlan::from_bytes(bad).is_err());
        }
    }
}

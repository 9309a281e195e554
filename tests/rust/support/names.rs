//! What a block is found by, spelled out: nothing is hashed, everything is compared.

/// One extra key as a caller gives it: `value` of `kind` holds for the tokens `start .. end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: usize,
    pub end: Option<usize>,
    pub kind: String,
    pub value: Vec<u8>,
}

impl Span {
    pub fn new(start: usize, end: Option<usize>, kind: &str, value: &[u8]) -> Self {
        Self { start, end, kind: kind.to_owned(), value: value.to_vec() }
    }
}

/// What isolates one sequence's blocks from another's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub salt: Vec<u8>,
    pub spans: Vec<Span>,
}

/// A span as one block sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    kind: String,
    value: Vec<u8>,
    /// Start of the block less start of the span: negative where the span begins inside.
    lead: i64,
    first: usize,
    last: usize,
}

/// One block of a history: what extra keys touch it, and its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub touches: Vec<Touch>,
    pub tokens: Vec<i32>,
}

/// The whole history of a full block, from the root of its salt down to its own tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub salt: Vec<u8>,
    pub links: Vec<Link>,
}

impl Name {
    /// The name of the block that stands before this one, if this is not a first block.
    pub fn parent(&self) -> Option<Self> {
        (self.links.len() > 1)
            .then(|| Self { salt: self.salt.clone(), links: self.links[..self.links.len() - 1].to_vec() })
    }

    pub fn starts_with(&self, other: &Self) -> bool {
        self.salt == other.salt && self.links.starts_with(&other.links)
    }

    pub fn is_child_of(&self, other: &Self) -> bool {
        self.parent().as_ref() == Some(other)
    }
}

/// The name of block `index` of a sequence that begins with `tokens`; that block must be full.
pub fn name_of(identity: &Identity, tokens: &[i32], index: usize, block_size: usize) -> Name {
    let links = (0..=index)
        .map(|block| Link {
            touches: touches(&identity.spans, block, block_size),
            tokens: tokens[block * block_size..(block + 1) * block_size].to_vec(),
        })
        .collect();
    Name { salt: identity.salt.clone(), links }
}

fn touches(spans: &[Span], block: usize, block_size: usize) -> Vec<Touch> {
    let (start, end) = (block * block_size, (block + 1) * block_size);
    let mut touching: Vec<&Span> = Vec::new();
    for span in spans {
        let reaches = span.start < end && span.end.is_none_or(|span_end| span_end > start);
        if reaches && !touching.contains(&span) {
            touching.push(span);
        }
    }
    // An open end sorts as the farthest one.
    touching.sort_by_key(|span| (span.kind.clone(), span.value.clone(), span.start, span.end.unwrap_or(usize::MAX)));
    touching
        .into_iter()
        .map(|span| Touch {
            kind: span.kind.clone(),
            value: span.value.clone(),
            lead: start as i64 - span.start as i64,
            first: span.start.max(start) - start,
            last: span.end.map_or(end, |span_end| span_end.min(end)) - start,
        })
        .collect()
}

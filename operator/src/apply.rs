//! Fifth step: makes the cluster what was rendered, with as few calls as possible.
//! In: desired and live children. Out: [`Outcome`]. Never: decisions about content.

/// What applying came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Writes that the API server took.
    pub writes: u32,
    /// What is waited for, as sentences: `pod flash-decode-0-ab12c is ending`.
    pub waiting: Vec<String>,
    /// Names that belong to somebody else's object: `Service flash`.
    pub taken_names: Vec<String>,
    /// Children that the API server refused, with its sentence.
    pub refused: Vec<Refused>,
    /// Pods whose image volume the API server dropped.
    pub image_volume_dropped: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// `Pod flash-prefill-0-ab12c`.
    pub child: String,
    pub message: String,
    /// Whether another try with the same input may succeed (a quota, a missing namespace label changed ...).
    pub forbidden: bool,
}

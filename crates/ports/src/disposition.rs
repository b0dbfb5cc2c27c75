//! What follows from a failure, whatever it was.

/// What a caller should do about a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// The thing is not there; for removals this is success.
    Absent,
    /// May work later by itself: the other side is away, busy or slow.
    Retry,
    /// Will fail again until somebody changes something.
    Refused,
    /// The other side does not know this call: use the fallback.
    Unsupported,
}

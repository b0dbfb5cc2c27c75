//! What every target has, and what several of them need.

/// One reader of foreign bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Words of its language, which mutations throw in.
    pub dictionary: &'static [&'static str],
}

/// The text of bytes: readers of text never see anything else.
pub(crate) fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

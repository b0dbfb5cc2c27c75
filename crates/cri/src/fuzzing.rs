//! A door for the fuzzers (`crates/fuzz`) to what is made of a runtime's answers.

use prost::Message;

use crate::from_wire;

/// How many kinds of answers the bytes are taken for, in turn.
pub fn answers(bytes: &[u8]) -> usize {
    fn read<M: Message + Default, T, E>(bytes: &[u8], turn: impl Fn(M) -> Result<T, E>) -> usize {
        M::decode(bytes).ok().and_then(|message| turn(message).ok()).map_or(0, |_| 1)
    }
    read(bytes, from_wire::status)
        + read(bytes, from_wire::sandbox_status)
        + read(bytes, from_wire::container_status)
        + read(bytes, from_wire::sandbox_info)
        + read(bytes, from_wire::container_info)
        + read(bytes, from_wire::container_stats)
        + read(bytes, from_wire::sandbox_stats)
        + read(bytes, from_wire::metric)
        + read(bytes, from_wire::image)
}

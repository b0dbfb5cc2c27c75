//! Blocks of the host's ids, one for each pod that has users of its own.
//!
//! A block is reserved in the state before anything is made with it, and written into the pod's directory before the
//! sandbox. It is free again when that directory is gone, and not before: whoever comes up after a crash finds in the
//! directories every block that may still be in use.

use std::collections::BTreeSet;

use model::cri::IdMapping;
use model::user_namespace::IdRange;

/// One more than the last id there is.
const END: u64 = 1 << 32;

#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum IdRangeError {
    #[error("kubelet user assigned ID {first} must be greater or equal to {ids_per_pod}")]
    TooLow { first: u64, ids_per_pod: u32 },
    #[error("kubelet user assigned ID {first} must be a multiple of {ids_per_pod}")]
    Unaligned { first: u64, ids_per_pod: u32 },
    #[error("kubelet user assigned IDs count {count} must be at least {needed}, for {max_pods} pods")]
    TooFew { count: u64, needed: u64, max_pods: u32 },
}

/// The ids that pods may get. `set_aside`: what the host's administrator gave to the user `kubelet`, if anything.
pub fn range(set_aside: Option<IdRange>, ids_per_pod: u32, max_pods: u32) -> Result<IdRange, IdRangeError> {
    let block = u64::from(ids_per_pod);
    let Some(range) = set_aside else { return Ok(IdRange { first: block, count: END - block }) };
    if range.first < block {
        return Err(IdRangeError::TooLow { first: range.first, ids_per_pod });
    }
    if range.first % block != 0 {
        return Err(IdRangeError::Unaligned { first: range.first, ids_per_pod });
    }
    let needed = block * u64::from(max_pods);
    if range.count < needed {
        return Err(IdRangeError::TooFew { count: range.count, needed, max_pods });
    }
    Ok(range)
}

/// The first block that shares no id with any that is taken.
pub(crate) fn first_free<'a>(
    range: IdRange,
    ids_per_pod: u32,
    taken: impl Iterator<Item = &'a IdMapping>,
) -> Option<IdMapping> {
    let block = u64::from(ids_per_pod);
    // Blocks of another size may be left from before the size was configured anew.
    let mut used = BTreeSet::new();
    for ids in taken {
        let (from, to) = (u64::from(ids.host_id), u64::from(ids.host_id) + u64::from(ids.length));
        used.extend((from / block)..to.div_ceil(block));
    }
    let end = range.first.saturating_add(range.count).min(END);
    let free = (range.first / block..end / block).find(|number| !used.contains(number))?;
    let host_id = u32::try_from(free * block).ok()?;
    Some(IdMapping { host_id, container_id: 0, length: ids_per_pod })
}

#[cfg(test)]
mod tests {
    use super::*;

    const K64: u32 = 65536;

    fn ids(first_block: u32, blocks: u32) -> IdMapping {
        IdMapping { host_id: first_block * K64, container_id: 0, length: blocks * K64 }
    }

    #[test]
    fn ranges_are_the_hosts_or_all() {
        let aside = |first, count| Some(IdRange { first, count });
        let check = |set_aside, ids_per_pod, max_pods, expect: Result<(u64, u64), &str>| {
            let got = range(set_aside, ids_per_pod, max_pods).map(|r| (r.first, r.count));
            assert_eq!(got.map_err(|e| e.to_string()), expect.map_err(str::to_owned));
        };
        check(None, K64, 110, Ok((65536, (1 << 32) - 65536)));
        check(None, 2 * K64, 110, Ok((131072, (1 << 32) - 131072)));
        check(aside(65536, 110 * 65536), K64, 110, Ok((65536, 110 * 65536)));
        check(aside(131072, 7208960), K64, 110, Ok((131072, 7208960)));
        check(
            aside(1000, 7208960),
            K64,
            110,
            Err("kubelet user assigned ID 1000 must be greater or equal to 65536"),
        );
        check(
            aside(65537, 7208960),
            K64,
            110,
            Err("kubelet user assigned ID 65537 must be a multiple of 65536"),
        );
        check(
            aside(65536, 65536),
            K64,
            2,
            Err("kubelet user assigned IDs count 65536 must be at least 131072, for 2 pods"),
        );
    }

    #[test]
    fn the_first_free_block_is_given() {
        let range = IdRange { first: u64::from(K64), count: 4 * u64::from(K64) };
        let check = |name: &str, taken: &[IdMapping], expect: Option<u32>| {
            let got = first_free(range, K64, taken.iter()).map(|ids| ids.host_id / K64);
            assert_eq!(got, expect, "{name}");
        };
        check("none taken", &[], Some(1));
        check("the first taken", &[ids(1, 1)], Some(2));
        check("a gap", &[ids(1, 1), ids(3, 1)], Some(2));
        check("a freed one comes first", &[ids(2, 1), ids(3, 1)], Some(1));
        check("the last", &[ids(1, 1), ids(2, 1), ids(3, 1)], Some(4));
        check("all taken", &[ids(1, 1), ids(2, 1), ids(3, 1), ids(4, 1)], None);
        check("a larger one from before", &[ids(1, 2)], Some(3));
        let odd = IdMapping { host_id: K64 + 5, container_id: 0, length: 10 };
        check("part of one", &[odd], Some(2));
        check("outside of the range", &[ids(9, 1)], Some(1));
    }

    #[test]
    fn the_last_id_is_never_passed() {
        let range = IdRange { first: (1 << 32) - u64::from(K64), count: 10 * u64::from(K64) };
        let last = first_free(range, K64, [].iter()).unwrap();
        assert_eq!(u64::from(last.host_id) + u64::from(last.length), 1 << 32);
        assert_eq!(first_free(range, K64, [last].iter()), None);
    }
}

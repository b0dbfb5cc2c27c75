//! Huge pages: sizes as resource names (`hugepages-2Mi`) and as the kernel spells them (`2MB`).

use std::collections::BTreeMap;

use model::quantity::Quantity;

use super::amounts::{Amounts, HUGE_PAGES_PREFIX};

/// The page size in bytes that a resource name is about, if it is one of huge pages.
pub fn page_size_of_resource(resource: &str) -> Option<u64> {
    let size: Quantity = resource.strip_prefix(HUGE_PAGES_PREFIX)?.parse().ok()?;
    u64::try_from(size.value()).ok().filter(|bytes| *bytes > 0)
}

/// `2MB` for 2097152. None when the size is no whole count of a unit below the next one.
pub fn page_size_name(bytes: u64) -> Option<String> {
    const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];
    let mut count = bytes;
    let mut unit = 0;
    while count > 0 && count.is_multiple_of(1024) && unit + 1 < UNITS.len() {
        count /= 1024;
        unit += 1;
    }
    let fits = count > 0 && (count <= 1024 || unit + 1 == UNITS.len());
    fits.then(|| format!("{count}{}", UNITS[unit]))
}

/// One entry per page size the host has, zero where `amounts` names none: what is not asked for is not given.
pub fn limits_by_page_size(amounts: &Amounts, host_sizes: &[String]) -> BTreeMap<String, u64> {
    let mut limits: BTreeMap<String, u64> = host_sizes.iter().map(|size| (size.clone(), 0)).collect();
    for (resource, amount) in amounts.iter() {
        let size = page_size_of_resource(resource).and_then(page_size_name);
        if let Some(limit) = size.and_then(|size| limits.get_mut(&size)) {
            *limit = limit.saturating_add(u64::try_from(amount.value()).unwrap_or(0));
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes() {
        let check = |resource: &str, bytes: Option<u64>, name: Option<&str>| {
            let size = page_size_of_resource(resource);
            assert_eq!(size, bytes, "{resource}");
            assert_eq!(size.and_then(page_size_name).as_deref(), name, "{resource}");
        };
        check("hugepages-2Mi", Some(2 << 20), Some("2MB"));
        check("hugepages-1Gi", Some(1 << 30), Some("1GB"));
        check("hugepages-64Ki", Some(64 << 10), Some("64KB"));
        check("hugepages-1024Mi", Some(1 << 30), Some("1GB"));
        check("hugepages-3001", Some(3001), None);
        check("hugepages-", None, None);
        check("hugepages-x", None, None);
        check("memory", None, None);
    }

    /// One size may be spelled in many ways, and each may ask for all there can be.
    #[test]
    fn limits_of_one_size_do_not_run_over() {
        let all: Quantity = i64::MAX.to_string().parse().unwrap();
        let names = ["hugepages-2Mi", "hugepages-2048Ki", "hugepages-2097152"];
        let amounts: Amounts = names.into_iter().map(|name| (name, all)).collect();
        let limits = limits_by_page_size(&amounts, &["2MB".to_owned()]);
        assert_eq!(limits["2MB"], u64::MAX);
    }

    #[test]
    fn every_size_of_the_host_gets_a_limit() {
        let amounts: Amounts =
            [("hugepages-2Mi", "8Mi".parse().unwrap()), ("hugepages-16Mi", "16Mi".parse().unwrap())]
                .into_iter()
                .collect();
        let limits = limits_by_page_size(&amounts, &["2MB".into(), "1GB".into()]);
        assert_eq!(limits, BTreeMap::from([("1GB".into(), 0), ("2MB".into(), 8 << 20)]));
    }
}

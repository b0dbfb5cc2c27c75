//! Pressure, as the kernel writes it for the machine and for cgroups of version 2.

use ports::{PsiData, PsiStats};

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, and the same for `full`, which CPU had not always.
pub(super) fn parse(text: &str) -> Option<PsiStats> {
    let of = |kind: &str| text.lines().find_map(|line| stall(line.strip_prefix(kind)?));
    Some(PsiStats { some: of("some ")?, full: of("full ").unwrap_or_default() })
}

fn stall(rest: &str) -> Option<PsiData> {
    let mut stall = PsiData::default();
    for word in rest.split_whitespace() {
        let (name, value) = word.split_once('=')?;
        match name {
            "avg10" => stall.averages[0] = value.parse().ok()?,
            "avg60" => stall.averages[1] = value.parse().ok()?,
            "avg300" => stall.averages[2] = value.parse().ok()?,
            "total" => stall.total_micros = value.parse().ok()?,
            _ => {}
        }
    }
    Some(stall)
}

//! How often pulls may begin: a bucket of tokens that fills evenly, counted in whole numbers.

use model::Mono;

/// One token.
const TOKEN: u128 = 1_000_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullRate {
    /// In parts of a token; `None`: full.
    level: Option<(u128, Mono)>,
}

impl PullRate {
    /// Takes a token if there is one. `per_second` zero: there always is.
    pub fn take(&mut self, per_second: u32, burst: u32, now: Mono) -> bool {
        if per_second == 0 {
            return true;
        }
        let most = u128::from(burst) * TOKEN;
        let level = match self.level {
            None => most,
            // Nanoseconds times tokens per second are parts of a token.
            Some((level, at)) => most.min(level + now.since(at).as_nanos() * u128::from(per_second)),
        };
        let granted = level >= TOKEN;
        self.level = Some((if granted { level - TOKEN } else { level }, now));
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(millis: u64) -> Mono {
        Mono::from_duration(Duration::from_millis(millis))
    }

    fn granted(rate: &mut PullRate, tries: usize, millis: u64) -> usize {
        (0..tries).filter(|_| rate.take(5, 10, at(millis))).count()
    }

    #[test]
    fn a_burst_and_then_an_even_flow() {
        let mut rate = PullRate::default();
        assert_eq!(granted(&mut rate, 20, 0), 10);
        assert_eq!(granted(&mut rate, 1, 199), 0);
        assert_eq!(granted(&mut rate, 2, 200), 1);
        assert_eq!(granted(&mut rate, 2, 399), 0);
        assert_eq!(granted(&mut rate, 9, 1_200), 5);
    }

    #[test]
    fn asking_often_costs_nothing() {
        let mut rate = PullRate::default();
        granted(&mut rate, 10, 0);
        for millis in 1..200 {
            assert_eq!(granted(&mut rate, 1, millis), 0, "{millis}");
        }
        assert_eq!(granted(&mut rate, 1, 200), 1);
    }

    #[test]
    fn a_long_quiet_time_fills_it_only_to_the_brim() {
        let mut rate = PullRate::default();
        granted(&mut rate, 10, 0);
        assert_eq!(granted(&mut rate, 50, 3_600_000), 10);
    }

    #[test]
    fn zero_is_no_limit() {
        let mut rate = PullRate::default();
        assert!((0..1_000).all(|_| rate.take(0, 0, at(0))));
    }

    proptest::proptest! {
        /// Over any span, no more than the burst and what flowed in meanwhile.
        #[test]
        fn never_more_than_burst_and_flow(
            per_second in 1u32..20,
            burst in 1u32..20,
            gaps in proptest::collection::vec(0u64..2_000, 1..200),
        ) {
            let mut rate = PullRate::default();
            let mut now = 0;
            let mut granted: Vec<u64> = Vec::new();
            for gap in gaps {
                now += gap;
                if rate.take(per_second, burst, at(now)) {
                    granted.push(now);
                }
            }
            for (index, from) in granted.iter().enumerate() {
                for (count, to) in granted[index..].iter().enumerate() {
                    let allowed = u64::from(burst) * 1_000 + (to - from) * u64::from(per_second);
                    proptest::prop_assert!((count as u64 + 1) * 1_000 <= allowed, "{from}..{to}: {count}");
                }
            }
        }
    }
}

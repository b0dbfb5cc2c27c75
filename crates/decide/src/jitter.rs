//! Randomness that is carried, not drawn: the same seed gives the same history.

use std::time::Duration;

/// A small generator (SplitMix64). Good enough to keep many nodes from doing the same thing at the same moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JitterSeed(pub u64);

impl JitterSeed {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From zero to below one.
    pub fn fraction(&mut self) -> f64 {
        // 53 bits are what a double holds exactly.
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From `period` to `period * (1 + factor)`.
    pub fn add_jitter(&mut self, period: Duration, factor: f64) -> Duration {
        period.mul_f64(1.0 + factor * self.fraction())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_over_its_range() {
        let mut seed = JitterSeed(1);
        let drawn: Vec<f64> = (0..1000).map(|_| seed.fraction()).collect();
        assert!(drawn.iter().all(|x| (0.0..1.0).contains(x)));
        assert!(drawn.iter().any(|x| *x < 0.1) && drawn.iter().any(|x| *x > 0.9));
        let period = Duration::from_secs(10);
        for _ in 0..1000 {
            let stretched = seed.add_jitter(period, 0.04);
            assert!(stretched >= period && stretched <= period.mul_f64(1.04));
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (mut a, mut b, mut c) = (JitterSeed(7), JitterSeed(7), JitterSeed(8));
        assert_eq!(a.fraction(), b.fraction());
        assert_ne!(a.fraction(), c.fraction());
    }
}

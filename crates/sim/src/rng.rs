//! A small generator of our own: the same seed gives the same numbers on every machine and with every toolchain.
//! xoshiro256**, seeded by splitmix64.

#[derive(Clone, Debug)]
pub struct Rng {
    words: [u64; 4],
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Derives one number from another, in no order that callers could rely on.
pub fn mix(number: u64) -> u64 {
    let mut state = number;
    splitmix(&mut state)
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self { words: std::array::from_fn(|_| splitmix(&mut state)) }
    }

    pub fn number(&mut self) -> u64 {
        let w = &mut self.words;
        let result = w[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = w[1] << 17;
        w[2] ^= w[0];
        w[3] ^= w[1];
        w[1] ^= w[2];
        w[0] ^= w[3];
        w[2] ^= t;
        w[3] = w[3].rotate_left(45);
        result
    }

    /// Below `bound`, which must not be zero. The bias is far below anything that matters here.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// From `low` up to, but not including, `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    /// True with this probability in a thousand.
    pub fn per_mille(&mut self, times: u64) -> bool {
        self.below(1000) < times
    }

    pub fn coin(&mut self) -> bool {
        self.number() >> 63 == 1
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_one_others() {
        let take = |seed| {
            let mut rng = Rng::new(seed);
            (0..16).map(|_| rng.number()).collect::<Vec<_>>()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }

    #[test]
    fn numbers_stay_in_their_range_and_fill_it() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 8];
        for _ in 0..4000 {
            seen[(rng.between(3, 11) - 3) as usize] += 1;
        }
        assert!(seen.iter().all(|n| (350..650).contains(n)), "{seen:?}");
    }
}

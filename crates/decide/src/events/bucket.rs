//! A bucket of tokens that fills evenly.

use std::time::Duration;

use model::Mono;

#[derive(Clone, PartialEq, Debug)]
pub struct TokenBucket {
    /// How long one token takes to come. Zero: there is always one.
    per_token: Duration,
    burst: u32,
    /// When the bucket will be full again.
    full_at: Mono,
}

impl TokenBucket {
    pub fn new(per_token: Duration, burst: u32) -> Self {
        Self { per_token, burst: burst.max(1), full_at: Mono::ZERO }
    }

    /// `per_second` zero: no limit.
    pub fn per_second(per_second: u32, burst: u32) -> Self {
        Self::new(Duration::from_secs(1).checked_div(per_second).unwrap_or(Duration::ZERO), burst)
    }

    /// When there is a token, at the earliest now.
    pub fn next_token_at(&self, now: Mono) -> Mono {
        let held = model::time::nanos(self.per_token.saturating_mul(self.burst - 1));
        now.max(Mono(self.full_at.0.saturating_sub(held)))
    }

    /// Takes a token if there is one.
    pub fn try_take(&mut self, now: Mono) -> bool {
        if self.next_token_at(now) > now {
            return false;
        }
        self.full_at = self.full_at.max(now).plus(self.per_token);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Mono {
        Mono::from_duration(Duration::from_millis(millis))
    }

    #[test]
    fn a_burst_and_then_an_even_flow() {
        let mut bucket = TokenBucket::per_second(50, 100);
        let mut taken =
            |tries: usize, millis: u64| (0..tries).filter(|_| bucket.try_take(at(millis))).count();
        assert_eq!(taken(200, 0), 100);
        assert_eq!(taken(5, 19), 0);
        assert_eq!(taken(5, 20), 1);
        assert_eq!(taken(500, 1_020), 50);
        assert_eq!(taken(500, 60_000), 100);
        assert_eq!(bucket.next_token_at(at(60_000)), at(60_020));
    }

    #[test]
    fn without_a_rate_there_is_no_limit() {
        let mut bucket = TokenBucket::per_second(0, 1);
        assert!((0..1000).all(|_| bucket.try_take(at(0))));
    }
}

//! Changes to inputs, drawn from a seed: the same seed makes the same inputs on every machine.

/// Inputs are not grown beyond this.
const LONGEST: usize = 4096;

/// Bytes and texts that readers tend to stumble over.
const AWKWARD: [&[u8]; 20] = [
    b"\0",
    b"\n",
    b"\r\n",
    b"\xff\xfe",
    b"\xf0\x9f\xa6\x80",
    b"-1",
    b"0",
    b"18446744073709551616",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"4294967295",
    b"1e999999999",
    b"0.0000000001",
    b"null",
    b"[]",
    b"{}",
    b"\"",
    b"\\",
    b"%",
    b"../../",
];

/// splitmix64
#[derive(Clone, Debug)]
pub struct RandomSource(pub u64);

impl RandomSource {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// 0 when the limit is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.draw() % limit as u64) as usize }
    }
}

/// A few changes at once to `seed`, with pieces of `other` and words of the target's language.
pub fn mutated(chance: &mut RandomSource, seed: &[u8], other: &[u8], words: &[&str]) -> Vec<u8> {
    let mut input = seed.to_vec();
    for _ in 0..=chance.below(4) {
        change(chance, &mut input, other, words);
    }
    input.truncate(LONGEST);
    input
}

fn change(chance: &mut RandomSource, input: &mut Vec<u8>, other: &[u8], words: &[&str]) {
    let at = chance.below(input.len() + 1);
    let end = (at + chance.below(32)).min(input.len());
    match chance.below(8) {
        0 if at < input.len() => input[at] ^= 1 << chance.below(8),
        1 if at < input.len() => input[at] = chance.draw() as u8,
        2 => drop(input.drain(at..end)),
        3 => {
            let piece = input[at..end].to_vec();
            input.splice(at..at, piece);
        }
        4 => drop(input.splice(at..end, AWKWARD[chance.below(AWKWARD.len())].iter().copied())),
        5 if !words.is_empty() => {
            let word = words[chance.below(words.len())];
            input.splice(at..at, word.bytes());
        }
        6 => {
            let from = chance.below(other.len() + 1);
            let to = (from + chance.below(64)).min(other.len());
            input.splice(at..end, other[from..to].iter().copied());
        }
        _ => input.truncate(at),
    }
}

/// The seed again and again, up to a length.
pub fn repeated(seed: &[u8], length: usize) -> Vec<u8> {
    seed.iter().copied().cycle().take(if seed.is_empty() { 0 } else { length }).collect()
}

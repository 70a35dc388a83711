//! Streams of numbers that follow from a seed.

/// `SplitMix64`: small, fast, and good enough to pick among tasks and to name objects; not for keys.
#[derive(Clone, Debug)]
pub(super) struct Stream(u64);

impl Stream {
    /// The stream number `index` of `seed`: streams of one seed are unrelated, so that drawing more from one
    /// leaves the others alone.
    pub(super) fn new(seed: u64, index: u64) -> Self {
        Self(mix(mix(seed) ^ mix(index.wrapping_add(0xA5A5_5A5A_0F0F_F0F0))))
    }

    pub(super) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `bound`, which is not zero.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        // The bias is below 2^-40 for any number of tasks that fits in memory.
        usize::try_from(self.next_u64() % bound as u64).unwrap_or(0)
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// A running hash, for comparing two runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trace(u64);

impl Trace {
    pub(super) const fn new() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
        // A separator, so that "ab" + "c" and "a" + "bc" differ.
        self.add_u64(bytes.len() as u64);
    }

    pub(super) fn add_u64(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }

    pub(super) const fn value(self) -> u64 {
        self.0
    }
}

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

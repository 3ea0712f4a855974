//! Amount of work of each test: small by default, that of an acceptance test with `BRISK_INTEROP_SCALE=full`.

/// Sizes in bytes, and counts.
pub(crate) struct Scale {
    /// One transfer over a path without loss, in each direction and family.
    pub(crate) clean_bulk: u64,
    /// One transfer at 2 % loss with reordering, in each role.
    pub(crate) lossy_bulk: u64,
    /// One transfer through the gateway pair over the lossy link.
    pub(crate) gateway_bulk: u64,
    /// Number of transfers of 30 kB over the lossy link, each on a fresh connection.
    pub(crate) lossy_fetches: u32,
    /// Number of consecutive connections over a path without loss.
    pub(crate) sequential: u32,
    /// Time limit of a transfer, seconds.
    pub(crate) patience: &'static str,
}

pub(crate) const SCALE_VARIABLE: &str = "BRISK_INTEROP_SCALE";

impl Scale {
    /// Returns the scale that the environment requests.
    pub(crate) fn chosen() -> Scale {
        match std::env::var(SCALE_VARIABLE).as_deref() {
            Ok("full") => Scale {
                clean_bulk: 1_000_000_000,
                lossy_bulk: 50_000_000,
                gateway_bulk: 200_000_000,
                lossy_fetches: 1_000,
                sequential: 20_000,
                patience: "1200",
            },
            Ok("") | Err(_) => Scale {
                clean_bulk: 20_000_000,
                lossy_bulk: 5_000_000,
                gateway_bulk: 5_000_000,
                lossy_fetches: 200,
                sequential: 500,
                patience: "60",
            },
            Ok(other) => panic!("{SCALE_VARIABLE}={other}: write full, or leave it out"),
        }
    }
}

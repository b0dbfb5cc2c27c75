//! Small files that count as damaged unless they are complete: a first line with version and checksum, then the
//! content.
//!
//! ```text
//!   1 <checksum>
//!   {"containers":...}
//! ```

const VERSION: &str = "1";

/// The content with its first line.
pub(crate) fn add_checksum(body: &str) -> String {
    format!("{VERSION} {}\n{body}", checksum(body))
}

/// The content, or why the file is damaged.
pub(crate) fn verify_checksum(text: &str) -> Result<&str, String> {
    let (seal, body) = text.split_once('\n').ok_or("it has no first line")?;
    let (version, sum) = seal.split_once(' ').ok_or("it has no checksum")?;
    if version != VERSION {
        return Err(format!("version {version:?} is not known"));
    }
    if sum != checksum(body) {
        return Err("the checksum differs".into());
    }
    Ok(body)
}

/// FNV-1a: protects against accidents, not against tampering.
fn checksum(text: &str) -> String {
    let sum = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{sum:016x}")
}

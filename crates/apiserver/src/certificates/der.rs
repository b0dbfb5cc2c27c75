//! The part of DER that is needed to convert older key formats to the format that rustls' crypto reads.

use rustls::pki_types::PrivateKeyDer;

/// Complete algorithm identifiers.
const P256: [u8; 21] = [
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07,
];
const P384: [u8; 18] = [
    0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00,
    0x22,
];
const RSA: [u8; 15] =
    [0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];

/// A P-384 key in SEC 1 form is longer than one of P-256 can be.
const LONGEST_P256: usize = 128;

/// Converts any of the formats to PKCS#8.
pub fn pkcs8(key: &PrivateKeyDer<'_>) -> Vec<u8> {
    match key {
        PrivateKeyDer::Sec1(sec1) => {
            let inner = sec1.secret_sec1_der();
            let algorithm: &[u8] = if inner.len() <= LONGEST_P256 { &P256 } else { &P384 };
            wrapped(algorithm, inner)
        }
        PrivateKeyDer::Pkcs1(pkcs1) => wrapped(&RSA, pkcs1.secret_pkcs1_der()),
        other => other.secret_der().to_vec(),
    }
}

fn wrapped(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let mut inside = vec![0x02, 0x01, 0x00];
    inside.extend_from_slice(algorithm);
    tagged(0x04, key, &mut inside);
    let mut whole = Vec::new();
    tagged(0x30, &inside, &mut whole);
    whole
}

pub(super) fn tagged(tag: u8, content: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    let length = content.len();
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
        out.push(0x80 | bytes.len() as u8);
        out.extend_from_slice(&bytes);
    }
    out.extend_from_slice(content);
}

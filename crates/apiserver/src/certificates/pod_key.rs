//! Keys of pod certificates, and requests signed with them.
//!
//! The request (PKCS#10) is as empty as possible: the API server needs only the public key and the proof of possession
//! of the private key. Everything else is in the PodCertificateRequest around it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use p521::ecdsa::DerSignature;
use p521::ecdsa::signature::hazmat::RandomizedPrehashSigner;
use p521::pkcs8::EncodePrivateKey;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use rsa::rand_core::OsRng;
use sha2::{Digest, Sha512};

use super::CertificateError;
use super::der::tagged;

const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
/// The tag of a request's attributes.
const ATTRIBUTES: u8 = 0xa0;
const VERSION_0: [u8; 3] = [0x02, 0x01, 0x00];

// Algorithm identifiers, without the enclosing sequence.
const ED25519: &[u8] = &[0x06, 0x03, 0x2b, 0x65, 0x70];
const RSA: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
const RSA_SHA256: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b, 0x05, 0x00];
const P256: &[u8] = &[
    0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03,
    0x01, 0x07,
];
const P384: &[u8] =
    &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];
const P521: &[u8] =
    &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23];
const ECDSA_SHA256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const ECDSA_SHA384: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03];
const ECDSA_SHA512: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04];

/// A new key for a pod.
pub struct PodKey {
    /// PKCS#8, as PEM.
    pub pem: String,
    /// PKCS#10, as DER.
    pub stub_request: Vec<u8>,
}

type Signature = Result<Vec<u8>, CertificateError>;

/// What a request is signed with.
struct Signer<'a> {
    /// The algorithms of the public key and of the signature.
    algorithms: (&'a [u8], &'a [u8]),
    public: &'a [u8],
    sign: &'a dyn Fn(&[u8]) -> Signature,
}

fn refused(error: impl std::fmt::Display) -> CertificateError {
    CertificateError::Key { detail: error.to_string() }
}

impl PodKey {
    /// `key_type`: the API's name.
    pub fn generate(key_type: &str) -> Result<PodKey, CertificateError> {
        match key_type {
            "ED25519" => ed25519(),
            "ECDSAP256" => ecdsa(&ECDSA_P256_SHA256_ASN1_SIGNING, (P256, ECDSA_SHA256)),
            "ECDSAP384" => ecdsa(&ECDSA_P384_SHA384_ASN1_SIGNING, (P384, ECDSA_SHA384)),
            "ECDSAP521" => p521(),
            "RSA3072" => rsa(3072),
            "RSA4096" => rsa(4096),
            other => Err(refused(format!("unknown key type {other:?}"))),
        }
    }

    fn new(pkcs8: &[u8], signer: &Signer<'_>) -> Result<PodKey, CertificateError> {
        Ok(PodKey { pem: private_pem(pkcs8), stub_request: stub_request(signer)? })
    }
}

/// The private key is its seed. Encoded here, because the library's encoding includes the public key, which not every
/// reader accepts.
fn ed25519() -> Result<PodKey, CertificateError> {
    let mut seed = [0; 32];
    SystemRandom::new().fill(&mut seed).map_err(refused)?;
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(refused)?;
    let mut inner = Vec::new();
    tagged(OCTET_STRING, &seed, &mut inner);
    let mut content = VERSION_0.to_vec();
    tagged(SEQUENCE, ED25519, &mut content);
    tagged(OCTET_STRING, &inner, &mut content);
    let mut pkcs8 = Vec::new();
    tagged(SEQUENCE, &content, &mut pkcs8);
    let sign = |message: &[u8]| Ok(pair.sign(message).as_ref().to_vec());
    let public = pair.public_key().as_ref();
    PodKey::new(&pkcs8, &Signer { algorithms: (ED25519, ED25519), public, sign: &sign })
}

fn ecdsa(
    algorithm: &'static EcdsaSigningAlgorithm,
    algorithms: (&[u8], &[u8]),
) -> Result<PodKey, CertificateError> {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(refused)?;
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).map_err(refused)?;
    let sign = |message: &[u8]| Ok(pair.sign(&random, message).map_err(refused)?.as_ref().to_vec());
    let public = pair.public_key().as_ref();
    PodKey::new(pkcs8.as_ref(), &Signer { algorithms, public, sign: &sign })
}

fn p521() -> Result<PodKey, CertificateError> {
    let secret = p521::SecretKey::random(&mut OsRng);
    let pair = p521::ecdsa::SigningKey::from_bytes(&secret.to_bytes()).map_err(refused)?;
    let public = secret.public_key().to_sec1_bytes();
    let sign = |message: &[u8]| {
        let signature: p521::ecdsa::Signature =
            pair.sign_prehash_with_rng(&mut OsRng, &Sha512::digest(message)).map_err(refused)?;
        Ok(DerSignature::from(signature).as_bytes().to_vec())
    };
    let pkcs8 = secret.to_pkcs8_der().map_err(refused)?;
    PodKey::new(pkcs8.as_bytes(), &Signer { algorithms: (P521, ECDSA_SHA512), public: &public, sign: &sign })
}

/// The crypto of our TLS can't generate RSA keys, but signs with them.
fn rsa(bits: usize) -> Result<PodKey, CertificateError> {
    let private = rsa::RsaPrivateKey::new(&mut OsRng, bits).map_err(refused)?;
    let pkcs8 = rsa::pkcs8::EncodePrivateKey::to_pkcs8_der(&private).map_err(refused)?;
    let pair = RsaKeyPair::from_pkcs8(pkcs8.as_bytes()).map_err(refused)?;
    let sign = |message: &[u8]| {
        let mut signature = vec![0; pair.public().modulus_len()];
        pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).map_err(refused)?;
        Ok(signature)
    };
    let public = pair.public().as_ref();
    PodKey::new(pkcs8.as_bytes(), &Signer { algorithms: (RSA, RSA_SHA256), public, sign: &sign })
}

fn private_pem(pkcs8: &[u8]) -> String {
    const LINE: usize = 64;
    let text = STANDARD.encode(pkcs8);
    let mut pem = "-----BEGIN PRIVATE KEY-----\n".to_owned();
    for line in text.as_bytes().chunks(LINE) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem + "-----END PRIVATE KEY-----\n"
}

/// A request without subject and attributes.
fn stub_request(signer: &Signer<'_>) -> Result<Vec<u8>, CertificateError> {
    let (of_key, of_signature) = signer.algorithms;
    let mut public = Vec::new();
    tagged(SEQUENCE, of_key, &mut public);
    bit_string(signer.public, &mut public);
    let mut content = VERSION_0.to_vec();
    tagged(SEQUENCE, &[], &mut content);
    tagged(SEQUENCE, &public, &mut content);
    tagged(ATTRIBUTES, &[], &mut content);
    let mut whole = Vec::new();
    tagged(SEQUENCE, &content, &mut whole);
    let signature = (signer.sign)(&whole)?;
    tagged(SEQUENCE, of_signature, &mut whole);
    bit_string(&signature, &mut whole);
    let mut request = Vec::new();
    tagged(SEQUENCE, &whole, &mut request);
    Ok(request)
}

fn bit_string(bytes: &[u8], out: &mut Vec<u8>) {
    // The last byte has no unused bits.
    tagged(BIT_STRING, &[&[0], bytes].concat(), out);
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// The output of openssl, given this on its standard input.
    fn openssl(args: &[&str], input: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let mut child = Command::new("openssl")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("openssl");
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// openssl can read key and request, accepts the signature, and derives the same public key.
    #[test]
    fn keys_and_their_requests_are_as_others_read_them() {
        let sizes = [
            ("ED25519", "ED25519"),
            ("ECDSAP256", "(256 bit)"),
            ("ECDSAP384", "(384 bit)"),
            ("ECDSAP521", "(521 bit)"),
            ("RSA3072", "(3072 bit"),
            ("RSA4096", "(4096 bit"),
        ];
        for (key_type, size) in sizes {
            let key = PodKey::generate(key_type).unwrap();
            let of_key = openssl(&["pkey", "-pubout", "-outform", "DER"], key.pem.as_bytes());
            let verified = ["req", "-inform", "DER", "-verify", "-noout", "-pubkey"];
            let of_request = openssl(&verified, &key.stub_request);
            let of_request = openssl(&["pkey", "-pubin", "-pubout", "-outform", "DER"], &of_request);
            assert_eq!(of_key, of_request, "{key_type}");
            let text = openssl(&["req", "-inform", "DER", "-noout", "-subject"], &key.stub_request);
            assert_eq!(String::from_utf8(text).unwrap().trim(), "subject=", "{key_type}");
            let words = openssl(&["pkey", "-noout", "-text"], key.pem.as_bytes());
            let words = String::from_utf8(words).unwrap();
            assert!(words.lines().next().unwrap().contains(size), "{key_type}: {words}");
        }
        let unknown = PodKey::generate("DSA").err().unwrap();
        assert!(unknown.to_string().contains("unknown key type \"DSA\""), "{unknown}");
    }

    #[test]
    fn no_key_is_made_twice() {
        for key_type in ["ED25519", "ECDSAP256", "ECDSAP384", "ECDSAP521"] {
            let [one, two] = [(); 2].map(|()| PodKey::generate(key_type).unwrap().pem);
            assert_ne!(one, two);
        }
    }
}

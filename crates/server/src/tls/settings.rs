//! Versions, suites and curves by their names in Go.

use rustls::crypto::{CryptoProvider, SupportedKxGroup, ring};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

use super::{TlsError, provider};

/// As the configuration has them; all empty means the defaults.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// `VersionTLS12` and the like.
    pub min_version: String,
    /// `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` and the like. Those of TLS 1.3 can't be chosen.
    pub cipher_suites: Vec<String>,
    /// Numbers of the IANA registry.
    pub curve_preferences: Vec<i32>,
}

/// Suites that Go knows and we do not speak: they have no forward secrecy or no authenticated encryption.
const REFUSED: [&str; 16] = [
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
];

impl TlsSettings {
    pub(super) fn resolve(
        &self,
    ) -> Result<(CryptoProvider, Vec<&'static SupportedProtocolVersion>), TlsError> {
        let versions = self.versions()?;
        let mut provider = provider();
        if !self.cipher_suites.is_empty() {
            provider.cipher_suites = self.suites(provider.cipher_suites)?;
        }
        if !self.curve_preferences.is_empty() {
            provider.kx_groups = self.curves()?;
        }
        Ok((provider, versions))
    }

    fn versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>, TlsError> {
        let (old, new) = (&rustls::version::TLS12, &rustls::version::TLS13);
        match self.min_version.as_str() {
            "VersionTLS10" | "VersionTLS11" => {
                tracing::warn!(
                    wanted = self.min_version,
                    "tlsMinVersion: TLS versions below 1.2 are not supported"
                );
                Ok(vec![new, old])
            }
            "" | "VersionTLS12" => Ok(vec![new, old]),
            "VersionTLS13" => Ok(vec![new]),
            other => Err(TlsError::UnknownVersion(other.to_owned())),
        }
    }

    fn suites(&self, known: Vec<SupportedCipherSuite>) -> Result<Vec<SupportedCipherSuite>, TlsError> {
        let mut chosen = Vec::new();
        for wanted in &self.cipher_suites {
            if REFUSED.contains(&wanted.as_str()) {
                tracing::warn!(suite = wanted, "tlsCipherSuites: cipher suite is not supported");
                continue;
            }
            let named = |suite: &&SupportedCipherSuite| {
                let name = go_name(suite);
                name == *wanted || name.strip_suffix("_SHA256") == Some(wanted)
            };
            let found = known.iter().find(named).ok_or_else(|| TlsError::UnknownSuite(wanted.clone()))?;
            chosen.push(*found);
        }
        // TLS 1.3 has no bad suites, and as with Go there is nothing to choose.
        let new = known.into_iter().filter(|suite| suite.tls13().is_some());
        let old = chosen.into_iter().filter(|suite| suite.tls13().is_none());
        Ok(new.chain(old).collect())
    }

    fn curves(&self) -> Result<Vec<&'static dyn SupportedKxGroup>, TlsError> {
        let one = |number: &i32| -> Option<&'static dyn SupportedKxGroup> {
            match number {
                23 => Some(ring::kx_group::SECP256R1),
                24 => Some(ring::kx_group::SECP384R1),
                29 => Some(ring::kx_group::X25519),
                other => {
                    tracing::warn!(curve = other, "tlsCurvePreferences: curve is not supported");
                    None
                }
            }
        };
        let curves: Vec<_> = self.curve_preferences.iter().filter_map(one).collect();
        if curves.is_empty() {
            return Err(TlsError::UnknownCurves(self.curve_preferences.clone()));
        }
        Ok(curves)
    }
}

/// Rust's names of the suites of TLS 1.3 have a prefix of their own.
fn go_name(suite: &SupportedCipherSuite) -> String {
    format!("{:?}", suite.suite()).replace("TLS13_", "TLS_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_in_gos_words() {
        let check = |min: &str, suites: &[&str], curves: &[i32], expect: Result<(usize, Vec<&str>), &str>| {
            let settings = TlsSettings {
                min_version: min.into(),
                cipher_suites: suites.iter().map(ToString::to_string).collect(),
                curve_preferences: curves.to_vec(),
            };
            let found = settings.resolve().map_err(|error| error.to_string());
            let found = found.map(|(provider, versions)| {
                let old: Vec<_> = provider.cipher_suites.iter().filter(|s| s.tls13().is_none()).collect();
                (versions.len(), old.into_iter().map(go_name).collect::<Vec<_>>())
            });
            let expect = expect.map_err(str::to_owned);
            assert_eq!(found, expect.map(|(n, names)| (n, names.into_iter().map(str::to_owned).collect())));
        };
        let all = vec![
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        ];
        check("", &[], &[], Ok((2, all.clone())));
        check("VersionTLS10", &[], &[29], Ok((2, all.clone())));
        check("VersionTLS13", &[], &[23, 24], Ok((1, all)));
        check("TLS1.2", &[], &[], Err(r#"unknown tls version "TLS1.2""#));
        let gcm = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        check("VersionTLS12", &[gcm, "TLS_RSA_WITH_RC4_128_SHA"], &[], Ok((2, vec![gcm])));
        check("", &["TLS_AES_128_GCM_SHA256"], &[], Ok((2, vec![])));
        check(
            "",
            &["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"],
            &[],
            Ok((2, vec!["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"])),
        );
        check("", &["TLS_MOON"], &[], Err("Cipher suite TLS_MOON not supported or doesn't exist"));
        check("", &[], &[1], Err("tlsCurvePreferences: no curve of [1] is supported"));
    }
}

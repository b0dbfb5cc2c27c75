//! TLS to a container runtime's streaming server on another machine: its certificate must be signed by an authority
//! that this machine trusts.

use std::io;
use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt;
use rustls::ClientConfig;

/// Reads the trusted certificate authorities of this machine.
pub fn client_config() -> io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the default protocol versions");
    Ok(builder.with_native_roots()?.with_no_client_auth())
}

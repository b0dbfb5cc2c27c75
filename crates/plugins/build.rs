//! The client for the crate, and the server for drivers of tests.

use protos::Side;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    protos::compile("proto", &["registration.proto", "csi.proto"], &[Side::Client, Side::Server])
}

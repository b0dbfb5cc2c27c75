//! Our part of OTLP: the client for the crate, and the server for the tests' collector.

use protos::Side;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    protos::compile("proto", &["trace_service.proto"], &[Side::Client, Side::Server])
}

//! The adapter's proto, for a server.

use protos::Side;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    protos::compile("../cri/proto", &["runtime.proto"], &[Side::Server])
}

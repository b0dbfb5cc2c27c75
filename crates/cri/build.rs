//! The client for the crate, and the server for its tests' false runtimes.

use protos::Side;

const FILES: [&str; 2] = ["runtime.proto", "containerd_events.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    protos::compile_with("proto", &FILES, &[Side::Client, Side::Server], |side, builder| match side {
        Side::Client => builder,
        // Tests compare what arrives with what was sent, by name.
        Side::Server => builder
            .message_attribute(".runtime", "#[derive(serde::Serialize, serde::Deserialize)]")
            .message_attribute(".runtime", "#[serde(default)]"),
    })
}

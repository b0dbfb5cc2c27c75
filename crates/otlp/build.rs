//! Compiles our part of OTLP without protoc: the client for the crate, and the server for the tests' collector.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/trace_service.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for (side, is_server) in [("client", false), ("server", true)] {
        let directory = out.join(side);
        std::fs::create_dir_all(&directory)?;
        tonic_prost_build::configure()
            .build_client(!is_server)
            .build_server(is_server)
            .out_dir(directory)
            .compile_fds(descriptors.clone())?;
    }
    Ok(())
}

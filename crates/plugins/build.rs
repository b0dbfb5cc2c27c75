//! Compiles our protos without protoc: the client for the crate, and the server for drivers of tests.

use std::path::PathBuf;

const PROTOS: [&str; 2] = ["proto/registration.proto", "proto/csi.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for (side, is_server) in [("client", false), ("server", true)] {
        let directory = out.join(side);
        std::fs::create_dir_all(&directory)?;
        tonic_prost_build::configure()
            .build_client(!is_server)
            .build_server(is_server)
            // A driver that knows only some calls answers Unimplemented to the others.
            .generate_default_stubs(true)
            // Ordered, so that the same value is always the same bytes.
            .btree_map(".")
            .out_dir(directory)
            .compile_fds(descriptors.clone())?;
    }
    Ok(())
}

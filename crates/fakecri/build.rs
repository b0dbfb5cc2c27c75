//! Compiles the adapter's proto for a server.

const PROTOS: &str = "../cri/proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={PROTOS}");
    let descriptors = protox::compile(["runtime.proto"], [PROTOS])?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_server(true)
        // What is not told here is answered with Unimplemented.
        .generate_default_stubs(true)
        .btree_map(".")
        .compile_fds(descriptors)?;
    Ok(())
}

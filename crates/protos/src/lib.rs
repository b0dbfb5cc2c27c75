//! How each crate that speaks gRPC compiles its protos in its build script: without protoc, and the same everywhere.

use std::path::{Path, PathBuf};

pub use tonic_prost_build::Builder;

type BuildResult = Result<(), Box<dyn std::error::Error>>;

/// Which half of a service is generated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Client,
    Server,
}

impl Side {
    /// The directory below `OUT_DIR` that gets the code.
    fn directory(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Server => "server",
        }
    }
}

/// Compiles `files` of the directory `proto` for each of `sides`, into a directory of its own.
pub fn compile(proto: impl AsRef<Path>, files: &[&str], sides: &[Side]) -> BuildResult {
    compile_with(proto, files, sides, |_, builder| builder)
}

/// The same, with further settings for each side.
pub fn compile_with(
    proto: impl AsRef<Path>,
    files: &[&str],
    sides: &[Side],
    settings: impl Fn(Side, Builder) -> Builder,
) -> BuildResult {
    let proto = proto.as_ref();
    println!("cargo:rerun-if-changed={}", proto.display());
    let descriptors = protox::compile(files, [proto])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for &side in sides {
        let directory = out.join(side.directory());
        std::fs::create_dir_all(&directory)?;
        settings(side, tonic_prost_build::configure())
            .build_client(side == Side::Client)
            .build_server(side == Side::Server)
            // A server that knows only some calls answers Unimplemented to the others.
            .generate_default_stubs(true)
            // Ordered, so that the same value is always the same bytes.
            .btree_map(".")
            .out_dir(directory)
            .compile_fds(descriptors.clone())?;
    }
    Ok(())
}

//! Reasons that users and controllers read in a container's `waiting.reason`: a contract, not error text.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($name:ident),* $(,)?) => {
        /// Why a container waits.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        pub enum Reason { $($name),* }
        impl Reason {
            pub const ALL: &'static [Reason] = &[$(Reason::$name),*];
            pub fn as_str(self) -> &'static str {
                match self { $(Reason::$name => stringify!($name)),* }
            }
        }
        impl std::fmt::Display for Reason {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

reasons!(
    ContainerCreating,
    PodInitializing,
    CrashLoopBackOff,
    ErrImagePull,
    ImagePullBackOff,
    ErrImageNeverPull,
    InvalidImageName,
    ImageInspectError,
    RegistryUnavailable,
    SignatureValidationFailed,
    CreateContainerConfigError,
    CreateContainerError,
    PreCreateHookError,
    PreStartHookError,
    PostStartHookError,
    RunContainerError,
    RestartingAllContainers,
);

//! Reasons and phases that users and controllers read in a pod's status: a contract, not error text. Whoever asks what a
//! status says parses it here and matches the variant.

use serde::{Deserialize, Serialize};

use crate::k8s::PodStatus;

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
            pub fn parse(text: &str) -> Option<Self> {
                match text { $(stringify!($name) => Some(Reason::$name),)* _ => None }
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

impl Reason {
    /// The container could not be started; counted by `kubelet_started_containers_errors_total`.
    pub fn is_start_error(self) -> bool {
        match self {
            Reason::ErrImagePull
            | Reason::ErrImageNeverPull
            | Reason::InvalidImageName
            | Reason::SignatureValidationFailed
            | Reason::CreateContainerConfigError
            | Reason::CreateContainerError
            | Reason::PostStartHookError
            | Reason::RunContainerError => true,
            Reason::ImagePullBackOff
            | Reason::ImageInspectError
            | Reason::RegistryUnavailable
            | Reason::ContainerCreating
            | Reason::PodInitializing
            | Reason::CrashLoopBackOff
            | Reason::PreCreateHookError
            | Reason::PreStartHookError
            | Reason::RestartingAllContainers => false,
        }
    }

    /// The container waits for its image, or for that of a volume.
    pub fn is_about_image(self) -> bool {
        match self {
            Reason::ErrImagePull
            | Reason::ImagePullBackOff
            | Reason::ErrImageNeverPull
            | Reason::InvalidImageName
            | Reason::ImageInspectError
            | Reason::RegistryUnavailable
            | Reason::SignatureValidationFailed => true,
            Reason::ContainerCreating
            | Reason::PodInitializing
            | Reason::CrashLoopBackOff
            | Reason::CreateContainerConfigError
            | Reason::CreateContainerError
            | Reason::PreCreateHookError
            | Reason::PreStartHookError
            | Reason::PostStartHookError
            | Reason::RunContainerError
            | Reason::RestartingAllContainers => false,
        }
    }
}

macro_rules! words {
    ($(#[$about:meta])* $type:ident { $($(#[$note:meta])* $name:ident),* $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum $type { $($(#[$note])* $name),* }
        impl $type {
            pub fn as_str(self) -> &'static str {
                match self { $($type::$name => stringify!($name)),* }
            }
            pub fn parse(text: &str) -> Option<Self> {
                match text { $(stringify!($name) => Some($type::$name),)* _ => None }
            }
        }
    };
}

words!(
    /// One word over all containers of a pod.
    PodPhase { Pending, Running, Succeeded, Failed }
);

impl PodPhase {
    pub fn of(status: &PodStatus) -> Option<Self> {
        status.phase.as_deref().and_then(Self::parse)
    }
    pub fn is_terminal(self) -> bool {
        match self {
            PodPhase::Succeeded | PodPhase::Failed => true,
            PodPhase::Pending | PodPhase::Running => false,
        }
    }
}

words!(
    /// Why the agent ended a pod, or does nothing for it: `status.reason`. Admission has more reasons of its own.
    PodReason {
        DeadlineExceeded,
        Evicted,
        /// A critical pod needed its resources.
        Preempting,
        /// The agent panicked over it several times.
        SetAside,
    }
);

impl PodReason {
    /// `None`: there is no reason, or one that nothing depends on.
    pub fn of(status: &PodStatus) -> Option<Self> {
        status.reason.as_deref().and_then(Self::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for reason in Reason::ALL.iter().copied() {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
        }
        let status = PodStatus {
            phase: Some("Failed".into()),
            reason: Some("Evicted".into()),
            ..PodStatus::default()
        };
        assert_eq!(PodPhase::of(&status), Some(PodPhase::Failed));
        assert_eq!(PodReason::of(&status), Some(PodReason::Evicted));
        let other = PodStatus { phase: Some("Unknown".into()), reason: Some("OutOfcpu".into()), ..status };
        assert_eq!((PodPhase::of(&other), PodReason::of(&other)), (None, None));
    }
}

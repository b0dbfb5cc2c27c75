//! Why a pod or container can't be rendered. The text is what users read in the container's status.

use crate::pod_volumes::VolumeError;
use crate::sandbox_placement::SandboxPlacementError;

#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum RenderError {
    #[error("pod {field} {value:?} is not a valid DNS {expected}")]
    Hostname { field: &'static str, value: String, expected: &'static str },
    #[error("hostname for pod {pod:?} was invalid: {hostname:?}")]
    HostnameEmpty { pod: String, hostname: String },
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long (64 characters is \
         the max, {} characters requested)", fqdn.len()
    )]
    FqdnTooLong { fqdn: String },
    #[error("the resolver configuration {path:?} has a nameserver line without an address")]
    ResolverConfig { path: String },
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces")]
    UserNamespaces,

    #[error("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")]
    ServiceLinksUnset,
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesNotRead,
    #[error("couldn't get {kind} {namespace}/{name}, no kubeClient defined")]
    NoApi { kind: &'static str, namespace: String, name: String },
    /// The API's own words.
    #[error("{message}")]
    Object { message: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    KeyMissing { kind: &'static str, key: String, namespace: String, name: String },
    #[error("cannot find the volume {volume:?} referenced by FileKeyRef")]
    EnvFileVolume { volume: String },
    #[error("couldn't parse env file: {cause}")]
    EnvFile { cause: String },
    #[error("environment variable key {key:?} not found in file {path:?}")]
    EnvFileKey { key: String, path: String },
    #[error("unsupported pod version: {version}")]
    FieldVersion { version: String },
    #[error("field label not supported: {path}")]
    FieldUnknown { path: String },
    #[error("field label does not support subscript: {path}")]
    FieldSubscript { path: String },
    #[error("unsupported fieldPath: {path}")]
    FieldUnsupported { path: String },
    #[error("host IP unknown; known addresses: []")]
    HostIpUnknown,
    #[error("unsupported container resource : {resource}")]
    ResourceUnsupported { resource: String },
    #[error("container {name} not found")]
    ContainerNotFound { name: String },

    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RunAsRoot { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root \
         (pod: {pod:?}, container: {container})"
    )]
    ImageUserNotNumeric { user: String, pod: String, container: String },
    #[error("container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})")]
    ImageRunsAsRoot { pod: String, container: String },
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    SeccompProfileUnset,
    #[error("missing localhost apparmor profile name")]
    AppArmorProfileUnset,
    #[error("unknown apparmor profile type: {kind:?}")]
    AppArmorType { kind: String },
    #[error("unsupported supplementalGroupsPolicy: {policy}")]
    SupplementalGroupsPolicy { policy: String },

    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    MountVolumeMissing { volume: String, container: String },
    #[error("cannot find volume {volume:?} to pass into container {container:?}")]
    DeviceVolumeMissing { volume: String, container: String },
    #[error("missing value for {names}")]
    SubPathVariable { names: String },
    #[error("error SubPath `{path}` must not be an absolute path")]
    SubPathAbsolute { path: String },
    #[error("unable to provision SubPath `{path}`: must not contain '..'")]
    SubPathBacksteps { path: String },
    #[error("invalid MountPropagation mode: {mode:?}")]
    MountPropagation { mode: String },
    #[error(
        "failed to resolve recursive read-only mode: volume {volume:?} requested recursive read-only mode, but {problem}"
    )]
    RecursiveReadOnly { volume: String, problem: String },
    #[error("failed to resolve recursive read-only mode: unknown recursive read-only mode {mode:?}")]
    RecursiveReadOnlyMode { mode: String },
    #[error("image volume {volume:?} is not supported yet")]
    ImageVolume { volume: String },
    #[error("unable to find target container {target}")]
    TargetMissing { target: String },
    #[error(transparent)]
    Place(#[from] SandboxPlacementError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl RenderError {
    /// Whether an API object is the cause. Then no retry is needed, because a change of the object wakes the pod.
    pub fn is_about_objects(&self) -> bool {
        matches!(self, RenderError::Object { .. } | RenderError::KeyMissing { .. })
    }
}

//! The agent's configuration: `KubeletConfiguration` from defaults, a file, drop-in files and flags.
//!
//! ```text
//! defaults -> --config file -> --config-dir drop-ins -> flags -> typed -> validate
//!             (lenient)        (merge patches)          (win)
//! ```
//!
//! [`load`] goes from left to right and stops at the first thing that can't be read, naming the file and
//! the field. [`validate`] then looks at the result as a whole and names every bad field at once. What is
//! odd but usable (an unknown field, a field nothing acts on yet) comes back as a warning.

mod defaults;
mod document;
mod duration;
mod error;
mod fields;
mod gate_table;
mod gates;
mod load;
mod names;
mod parts;
mod path;
mod quantity;
mod source;
mod types;
mod validate;

pub use defaults::DEFAULT_EVICTION_HARD;
pub use duration::{DurationError, GoDuration};
pub use error::ConfigError;
pub use fields::{FIELDS, Support, support};
pub use gates::{FeatureGates, Gate, GateError, Stage, known_gates};
pub use load::{LoadedConfig, Override, OverrideMode, Sources, load};
pub use names::{label_value_error, qualified_name_error};
pub use parts::{
    AnonymousAuthentication, Authentication, Authorization, CrashLoopBackOff, Logging, LoggingOptions,
    MemoryReservation, MemorySwap, OutputRouting, QuantityText, ShutdownGracePeriodByPodPriority, Taint,
    Tracing, UserNamespaces, VmoduleItem, WebhookAuthentication, WebhookAuthorization, X509Authentication,
};
pub use types::{API_VERSION, KIND, KubeletConfiguration};
pub use validate::{FieldError, Host, validate};
pub(crate) use validate::{TAINT_EFFECTS, is_reservable_memory};

//! What a row of the table of flags holds.

use super::kind::ValueKind;
use crate::config::{self, Support};

/// One flag of the command line.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub name: &'static str,
    pub kind: ValueKind,
    pub group: Group,
    pub target: Target,
    /// Empty where the default is no value, or the configuration field's.
    pub default: &'static str,
    /// Upstream means to take it away one day.
    pub deprecated: bool,
    pub help: &'static str,
}

/// Where a flag's value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Into this field of the configuration, over what the files say.
    Field(&'static str),
    /// Into [`super::Flags`].
    NotInConfig(Support),
}

/// The headings of `--help`, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    General,
    Cluster,
    Serving,
    Pods,
    Runtime,
    Resources,
    Eviction,
    Logging,
    Cadvisor,
}

impl Group {
    pub const ALL: [Self; 9] = [
        Self::General,
        Self::Cluster,
        Self::Serving,
        Self::Pods,
        Self::Runtime,
        Self::Resources,
        Self::Eviction,
        Self::Logging,
        Self::Cadvisor,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::General => "General",
            Self::Cluster => "Cluster and node",
            Self::Serving => "Serving",
            Self::Pods => "Pods",
            Self::Runtime => "Runtime and images",
            Self::Resources => "Cgroups and resources",
            Self::Eviction => "Eviction",
            Self::Logging => "Feature gates and logging",
            Self::Cadvisor => "cAdvisor (accepted for compatibility)",
        }
    }
}

impl Flag {
    pub fn support(&self) -> Support {
        match self.target {
            Target::NotInConfig(effect) => effect,
            Target::Field(field) => config::support(field).unwrap_or(Support::NoEffectYet),
        }
    }

    /// The one-letter form, if there is one.
    pub fn short(&self) -> Option<char> {
        match self.name {
            "v" => Some('v'),
            "help" => Some('h'),
            _ => None,
        }
    }
}

/// A flag for a configuration field that is there to stay.
pub(super) const fn field(
    name: &'static str,
    kind: ValueKind,
    group: Group,
    field: &'static str,
    help: &'static str,
) -> Flag {
    Flag { name, kind, group, target: Target::Field(field), default: "", deprecated: false, help }
}

/// A flag for a configuration field that should be set in the file instead.
pub(super) const fn deprecated_field(
    name: &'static str,
    kind: ValueKind,
    group: Group,
    field: &'static str,
    help: &'static str,
) -> Flag {
    Flag { name, kind, group, target: Target::Field(field), default: "", deprecated: true, help }
}

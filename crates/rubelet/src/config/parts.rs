//! The nested objects of `KubeletConfiguration`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::duration::{GoDuration, text_or_nanoseconds};
use super::quantity;

/// Go's `omitempty` for numbers, strings, booleans, lists and maps.
pub(super) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Authentication {
    #[serde(default)]
    pub x509: X509Authentication,
    #[serde(default)]
    pub webhook: WebhookAuthentication,
    #[serde(default)]
    pub anonymous: AnonymousAuthentication,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct X509Authentication {
    #[serde(rename = "clientCAFile", default, skip_serializing_if = "is_zero")]
    pub client_ca_file: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WebhookAuthentication {
    #[serde(default)]
    pub enabled: bool,
    #[serde(rename = "cacheTTL", default)]
    pub cache_ttl: GoDuration,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AnonymousAuthentication {
    #[serde(default)]
    pub enabled: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Authorization {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mode: String,
    #[serde(default)]
    pub webhook: WebhookAuthorization,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WebhookAuthorization {
    #[serde(rename = "cacheAuthorizedTTL", default)]
    pub cache_authorized_ttl: GoDuration,
    #[serde(rename = "cacheUnauthorizedTTL", default)]
    pub cache_unauthorized_ttl: GoDuration,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemorySwap {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub swap_behavior: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CrashLoopBackOff {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_container_restart_period: Option<GoDuration>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShutdownGracePeriodByPodPriority {
    #[serde(default)]
    pub priority: i32,
    #[serde(default)]
    pub shutdown_grace_period_seconds: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryReservation {
    #[serde(default)]
    pub numa_node: i32,
    #[serde(default)]
    pub limits: BTreeMap<String, QuantityText>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    #[serde(default)]
    pub key: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub value: String,
    #[serde(default)]
    pub effect: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_added: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tracing {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_rate_per_million: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserNamespaces {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids_per_pod: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Logging {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub format: String,
    #[serde(default, deserialize_with = "text_or_nanoseconds")]
    pub flush_frequency: GoDuration,
    #[serde(default)]
    pub verbosity: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vmodule: Vec<VmoduleItem>,
    #[serde(default)]
    pub options: LoggingOptions,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VmoduleItem {
    #[serde(default)]
    pub file_pattern: String,
    #[serde(default)]
    pub verbosity: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoggingOptions {
    #[serde(default)]
    pub text: OutputRouting,
    #[serde(default)]
    pub json: OutputRouting,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputRouting {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub split_stream: bool,
    #[serde(default)]
    pub info_buffer_size: QuantityText,
}

/// A Kubernetes quantity kept as it was written; its syntax has been checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct QuantityText(String);

impl QuantityText {
    pub fn parse(text: &str) -> Option<Self> {
        quantity::sign(text).map(|_| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_zero(&self) -> bool {
        quantity::sign(&self.0) == Some(0)
    }
}

impl Default for QuantityText {
    fn default() -> Self {
        Self("0".to_owned())
    }
}

impl<'de> Deserialize<'de> for QuantityText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor)
    }
}

struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = QuantityText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity such as \"10Mi\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<QuantityText, E> {
        QuantityText::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<QuantityText, E> {
        Ok(QuantityText(number.to_string()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<QuantityText, E> {
        Ok(QuantityText(number.to_string()))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<QuantityText, E> {
        Ok(QuantityText(number.to_string()))
    }
}

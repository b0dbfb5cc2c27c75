//! The environment of a container.
//!
//! First what `envFrom` names, in its order; then `env` in its order, each overriding what was there; then the
//! services' variables that nothing else has set. The list keeps that order.

pub mod file;

use std::collections::BTreeMap;

use model::cri::KeyValue;
use model::files::EnvFileRead;
use model::k8s;
use model::pod::PodView;

use super::expansion::expand;
use super::services::{self, ServiceView};
use super::{ContainerInputs, ContainerRef, RenderContext, RenderError, fields, pod_ips};

/// Why an object of the API could not be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ObjectError {
    NotFound,
    /// Any other failure, in its own words.
    Failed(String),
}

/// Config maps and secrets of the pod's namespace, by name, as they were read for this container.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct EnvObjects {
    pub config_maps: BTreeMap<String, Result<BTreeMap<String, String>, ObjectError>>,
    pub secrets: BTreeMap<String, Result<BTreeMap<String, Vec<u8>>, ObjectError>>,
}

/// What is known about services.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Services<'a> {
    /// There is no API to ask.
    #[default]
    Standalone,
    /// There is one, and it has not answered yet.
    NotRead,
    Read(&'a [ServiceView]),
}

/// What a container's environment is made from besides its pod. The default is a node without an API server.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct EnvSources<'a> {
    pub objects: Option<&'a EnvObjects>,
    pub services: Services<'a>,
    /// The files that variables are kept in, as they were read for this container.
    pub files: &'a [EnvFileRead],
}

/// Variables in order, each name once.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Environment {
    list: Vec<KeyValue>,
    /// Where each name stands in the list: a namespace may have thousands of services.
    index_by_name: BTreeMap<String, usize>,
}

impl Environment {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.index_by_name.get(name).map(|place| self.list[*place].value.as_str())
    }

    /// Sets a variable; one that exists keeps its place.
    fn set(&mut self, name: &str, value: String) {
        if let Some(place) = self.index_by_name.get(name) {
            self.list[*place].value = value;
        } else {
            self.index_by_name.insert(name.to_owned(), self.list.len());
            self.list.push(KeyValue { key: name.to_owned(), value });
        }
    }

    /// `text` with its references to variables replaced.
    pub fn expand(&self, text: &str) -> String {
        expand(text, |name| self.get(name).map(str::to_owned))
    }

    pub fn into_list(self) -> Vec<KeyValue> {
        self.list
    }
}

/// Builds a container's environment.
pub fn environment(
    ctx: &RenderContext<'_>,
    pod: &PodView,
    container: &ContainerRef<'_>,
    inputs: &ContainerInputs<'_>,
) -> Result<Environment, RenderError> {
    let service_variables = service_variables(pod, inputs.env.services)?;
    let objects = EnvObjectReader { namespace: pod.namespace(), objects: inputs.env.objects };
    let mut env = Environment::default();
    for source in container.container.env_from.iter().flatten() {
        add_all(&mut env, &objects, source)?;
    }
    for variable in container.container.env.iter().flatten() {
        let text = variable.value.as_deref().unwrap_or_default();
        let value = match &variable.value_from {
            Some(source) if text.is_empty() => {
                let resolver = Resolver { ctx, pod, container, inputs, objects: &objects };
                resolver.value(source)?
            }
            _ => Some(expand(text, |name| {
                env.get(name).or_else(|| service_variables.get(name).map(String::as_str)).map(str::to_owned)
            })),
        };
        if let Some(value) = value {
            env.set(&variable.name, value);
        }
    }
    for (name, value) in service_variables {
        if env.get(&name).is_none() {
            env.set(&name, value);
        }
    }
    Ok(env)
}

fn service_variables(pod: &PodView, known: Services<'_>) -> Result<BTreeMap<String, String>, RenderError> {
    let link_all = pod.spec().enable_service_links.ok_or(RenderError::ServiceLinksUnset)?;
    match known {
        Services::Read(list) => Ok(services::variables(list, pod.namespace(), link_all)),
        // a pod that came from the API may expect the API's services, and they are about to be known
        Services::NotRead if !pod.source.is_static() => Err(RenderError::ServicesNotRead),
        Services::NotRead | Services::Standalone => Ok(BTreeMap::new()),
    }
}

/// Takes over a whole object. Names are not checked: the runtime takes any.
fn add_all(
    env: &mut Environment,
    objects: &EnvObjectReader<'_>,
    source: &k8s::EnvFromSource,
) -> Result<(), RenderError> {
    let prefix = source.prefix.as_deref().unwrap_or_default();
    if let Some(reference) = &source.config_map_ref {
        let entries = objects.config_map(&reference.name, reference.optional)?;
        for (key, value) in entries.into_iter().flatten() {
            env.set(&format!("{prefix}{key}"), value.clone());
        }
    } else if let Some(reference) = &source.secret_ref {
        let entries = objects.secret(&reference.name, reference.optional)?;
        for (key, value) in entries.into_iter().flatten() {
            env.set(&format!("{prefix}{key}"), text_of(value));
        }
    }
    Ok(())
}

/// Variables are text on the wire; what is no UTF-8 is replaced.
fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Objects of one namespace with the errors that users read.
struct EnvObjectReader<'a> {
    namespace: &'a str,
    objects: Option<&'a EnvObjects>,
}

impl<'a> EnvObjectReader<'a> {
    /// None when an optional one does not exist.
    fn config_map(
        &self,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<&'a BTreeMap<String, String>>, RenderError> {
        let objects = self.objects.ok_or_else(|| self.no_api("configMap", name))?;
        self.found(objects.config_maps.get(name), "configmap", name, optional)
    }

    fn secret(
        &self,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<&'a BTreeMap<String, Vec<u8>>>, RenderError> {
        let objects = self.objects.ok_or_else(|| self.no_api("secret", name))?;
        self.found(objects.secrets.get(name), "secret", name, optional)
    }

    fn no_api(&self, kind: &'static str, name: &str) -> RenderError {
        RenderError::NoApi { kind, namespace: self.namespace.to_owned(), name: name.to_owned() }
    }

    fn found<T>(
        &self,
        object: Option<&'a Result<T, ObjectError>>,
        kind: &str,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<&'a T>, RenderError> {
        let message = match object {
            Some(Ok(object)) => return Ok(Some(object)),
            Some(Err(ObjectError::NotFound)) if optional == Some(true) => return Ok(None),
            Some(Err(ObjectError::NotFound)) => format!("{kind} {name:?} not found"),
            Some(Err(ObjectError::Failed(message))) => message.clone(),
            None => format!("object {:?}/{name:?} not registered", self.namespace),
        };
        Err(RenderError::Object { message })
    }
}

/// Everything that a `valueFrom` may refer to.
struct Resolver<'a> {
    ctx: &'a RenderContext<'a>,
    pod: &'a PodView,
    container: &'a ContainerRef<'a>,
    inputs: &'a ContainerInputs<'a>,
    objects: &'a EnvObjectReader<'a>,
}

impl Resolver<'_> {
    /// The value, or None when the variable is not set at all because something optional is missing.
    fn value(&self, source: &k8s::EnvVarSource) -> Result<Option<String>, RenderError> {
        if let Some(selector) = &source.field_ref {
            let ips = pod_ips(self.ctx, self.pod, self.inputs.sandbox_ips);
            fields::field(self.ctx, self.pod, ips, selector).map(Some)
        } else if let Some(selector) = &source.resource_field_ref {
            fields::resource(self.ctx, self.pod, self.container, selector).map(Some)
        } else if let Some(selector) = &source.config_map_key_ref {
            let entries = self.objects.config_map(&selector.name, selector.optional)?;
            let Some(entries) = entries else { return Ok(None) };
            let value = entries.get(&selector.key).cloned();
            self.key("ConfigMap", &selector.name, &selector.key, selector.optional, value)
        } else if let Some(selector) = &source.secret_key_ref {
            let entries = self.objects.secret(&selector.name, selector.optional)?;
            let Some(entries) = entries else { return Ok(None) };
            let value = entries.get(&selector.key).map(|bytes| text_of(bytes));
            self.key("Secret", &selector.name, &selector.key, selector.optional, value)
        } else if let Some(selector) = source.file_key_ref.as_ref().filter(|_| self.env_files_on()) {
            self.in_file(selector)
        } else {
            Ok(Some(String::new()))
        }
    }

    fn env_files_on(&self) -> bool {
        self.ctx.config.feature(file::GATE)
    }

    fn in_file(&self, selector: &k8s::FileKeySelector) -> Result<Option<String>, RenderError> {
        let (volume, path) = (&selector.volume_name, &selector.path);
        let found =
            self.inputs.env.files.iter().find(|read| read.file.volume == *volume && read.file.path == *path);
        let Some(read) = found else { return Err(RenderError::EnvFileVolume { volume: volume.clone() }) };
        let unreadable = |cause: String| RenderError::EnvFile { cause };
        let text = read.text.as_ref().map_err(|cause| unreadable(cause.clone()))?;
        let value = file::find(text, &selector.key).map_err(unreadable)?;
        if value.is_some() || selector.optional == Some(true) {
            return Ok(value);
        }
        let pod_dir = self.ctx.config.pod_dir(&self.pod.uid);
        let path = format!("{pod_dir}/volumes/kubernetes.io~empty-dir/{volume}/{path}");
        Err(RenderError::EnvFileKey { key: selector.key.clone(), path })
    }

    fn key(
        &self,
        kind: &'static str,
        name: &str,
        key: &str,
        optional: Option<bool>,
        value: Option<String>,
    ) -> Result<Option<String>, RenderError> {
        if value.is_some() || optional == Some(true) {
            return Ok(value);
        }
        let namespace = self.pod.namespace().to_owned();
        Err(RenderError::KeyMissing { kind, key: key.to_owned(), namespace, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests;

//! The part of a volume that a container is shown.

use std::collections::BTreeSet;

use model::k8s;

use crate::render::env::Environment;
use crate::render::error::RenderError;
use crate::render::expansion::expand;

/// The mount's sub-path, expanded and found harmless. None when the whole volume is meant.
pub(super) fn sub_path_of_mount(
    mount: &k8s::VolumeMount,
    env: &Environment,
) -> Result<Option<String>, RenderError> {
    let expression = mount.sub_path_expr.as_deref().filter(|text| !text.is_empty());
    let path = match expression {
        Some(expression) => expanded(expression, env)?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    if path.is_empty() {
        return Ok(None);
    }
    if path.starts_with('/') {
        return Err(RenderError::SubPathAbsolute { path });
    }
    if path.split('/').any(|part| part == "..") {
        return Err(RenderError::SubPathBacksteps { path });
    }
    Ok(Some(path))
}

/// An empty variable would show more of the volume than was meant, so it counts as missing.
fn expanded(expression: &str, env: &Environment) -> Result<String, RenderError> {
    let mut missing = BTreeSet::new();
    let path = expand(expression, |name| {
        let value = env.get(name).unwrap_or_default();
        if value.is_empty() {
            missing.insert(name.to_owned());
        }
        Some(value.to_owned())
    });
    if missing.is_empty() {
        return Ok(path);
    }
    let names: Vec<String> = missing.into_iter().collect();
    Err(RenderError::SubPathVariable { names: names.join(", ") })
}

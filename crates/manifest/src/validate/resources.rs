//! Resource requirements and claims.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodSpec, ResourceClaim, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use model::quantity::Quantity;

use super::report::{Path, ValidationErrors};
use super::syntax;
use crate::totals::{self, Amounts};

const STANDARD: &[&str] = &["cpu", "memory", "ephemeral-storage"];

pub(super) fn container(
    requirements: &ResourceRequirements,
    claims: &BTreeSet<&str>,
    path: &Path,
    report: &mut ValidationErrors,
) {
    check_requirements(requirements, container_resource_name, path, report);
    claim_references(
        requirements.claims.as_deref().unwrap_or_default(),
        claims,
        &path.child("claims"),
        report,
    );
}

pub(super) fn overhead(overhead: &BTreeMap<String, ApiQuantity>, path: &Path, report: &mut ValidationErrors) {
    check_amounts(Some(overhead), container_resource_name, path, report);
}

/// The resources of the pod as a whole must cover those of its containers.
pub(super) fn pod_level(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    let Some(requirements) = &spec.resources else { return };
    let path = path.child("resources");
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return report.forbidden(&path, "a windows pod has no resources of its own");
    }
    if requirements.claims.is_some() {
        report.forbidden(&path.child("claims"), "claims belong to containers");
    }
    check_requirements(requirements, pod_resource_name, &path, report);
    covers_containers(spec, requirements, &path, report);
}

fn covers_containers(
    spec: &PodSpec,
    requirements: &ResourceRequirements,
    path: &Path,
    report: &mut ValidationErrors,
) {
    let requests = totals::amounts(requirements.requests.as_ref());
    for (name, sum) in totals::container_requests(spec) {
        if let Some(request) = requests.get(&name).filter(|request| sum > **request) {
            let why = format!("must be at least {sum}, what the containers request together");
            report.invalid(&path.child("requests").key(&name), &request.to_string(), &why);
        }
    }
    let limits = totals::amounts(requirements.limits.as_ref());
    for (name, sum) in
        totals::container_limits(spec).into_iter().filter(|(name, _)| totals::is_huge_page(name))
    {
        if let Some(limit) = limits.get(&name).filter(|limit| sum > **limit) {
            let why = format!("must be at least {sum}, what the containers are limited to together");
            report.invalid(&path.child("limits").key(&name), &limit.to_string(), &why);
        }
    }
    for (index, container) in spec.containers.iter().enumerate() {
        let own =
            totals::amounts(container.resources.as_ref().and_then(|resources| resources.limits.as_ref()));
        for (name, limit) in own {
            if let Some(most) = limits.get(&name).filter(|most| limit > **most) {
                let path =
                    Path::new("spec").child("containers").index(index).child("resources").child("limits");
                let why = format!("must be no more than the pod's limit of {most}");
                report.invalid(&path.key(&name), &limit.to_string(), &why);
            }
        }
    }
}

type NameRule = fn(&str) -> Vec<String>;

fn check_requirements(
    requirements: &ResourceRequirements,
    name_rule: NameRule,
    path: &Path,
    report: &mut ValidationErrors,
) {
    let limits = check_amounts(requirements.limits.as_ref(), name_rule, &path.child("limits"), report);
    let requests = check_amounts(requirements.requests.as_ref(), name_rule, &path.child("requests"), report);
    for (name, request) in &requests {
        let request_path = path.child("requests").key(name);
        match limits.get(name) {
            Some(limit) if request != limit && !totals::may_overcommit(name) => {
                let why = format!("must be equal to the {name} limit of {limit}");
                report.invalid(&request_path, &request.to_string(), &why);
            }
            Some(limit) if request > limit => {
                let why = format!("must be less than or equal to the {name} limit of {limit}");
                report.invalid(&request_path, &request.to_string(), &why);
            }
            None if !totals::may_overcommit(name) => {
                report.required_because(&path.child("limits").key(name), "this resource needs a limit");
            }
            _ => {}
        }
    }
    let names: BTreeSet<&String> = limits.keys().chain(requests.keys()).collect();
    let has = |wanted: fn(&str) -> bool| names.iter().any(|name| wanted(name));
    if has(totals::is_huge_page) && !has(|name| matches!(name, "cpu" | "memory")) {
        report.forbidden(path, "huge pages need cpu or memory beside them");
    }
}

/// The amounts of a list, each checked on its own.
fn check_amounts(
    list: Option<&BTreeMap<String, ApiQuantity>>,
    name_rule: NameRule,
    path: &Path,
    report: &mut ValidationErrors,
) -> Amounts {
    for (name, text) in list.into_iter().flatten() {
        let path = path.key(name);
        report.invalid_for_each(&path, name, name_rule(name));
        match Quantity::try_from(text) {
            Ok(amount) => check_amount(name, amount, &path, report),
            Err(error) => report.invalid(&path, &text.0, &error.to_string()),
        }
    }
    totals::amounts(list)
}

fn check_amount(name: &str, amount: Quantity, path: &Path, report: &mut ValidationErrors) {
    if amount.is_negative() {
        report.invalid(path, &amount.to_string(), syntax::NOT_NEGATIVE);
    }
    if is_extended(name) && amount.milli_value() % 1000 != 0 {
        report.invalid(path, &amount.to_string(), "must be a whole number");
    }
    if let Some(page) = name.strip_prefix("hugepages-") {
        let page_size = page.parse().unwrap_or(Quantity::ZERO);
        let whole_page = page_size > Quantity::ZERO && page_size.milli_value() % 1000 == 0;
        if !whole_page || amount.value() % page_size.value() != 0 {
            report.invalid(path, &amount.to_string(), &format!("must be a multiple of the page size {page}"));
        }
    }
}

/// Resources of device plugins and the like: named within a domain that is not Kubernetes' own.
fn is_extended(name: &str) -> bool {
    !totals::is_native(name)
        && !name.starts_with("requests.")
        && syntax::qualified_name(&format!("requests.{name}")).is_empty()
}

fn container_resource_name(name: &str) -> Vec<String> {
    let mut found = syntax::qualified_name(name);
    if !name.contains('/') {
        if !STANDARD.contains(&name) && !totals::is_huge_page(name) {
            found.push("must be a standard resource of containers or have a domain before a '/'".to_owned());
        }
    } else if !totals::is_native(name) && !is_extended(name) {
        found.push("is not a name for an extended resource".to_owned());
    }
    found
}

fn pod_resource_name(name: &str) -> Vec<String> {
    let mut found = syntax::qualified_name(name);
    if found.is_empty() && !totals::is_pod_level(name) {
        found.push("only cpu, memory and huge pages can be set for a whole pod".to_owned());
    }
    found
}

/// `spec.resourceClaims`
pub(super) fn claims(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    let mut names = BTreeSet::new();
    for (index, claim) in spec.resource_claims.iter().flatten().enumerate() {
        let path = path.child("resourceClaims").index(index);
        if report.require_text(&path.child("name"), &claim.name) {
            if !names.insert(&claim.name) {
                report.duplicate(&path.child("name"), &claim.name);
            }
            report.invalid_for_each(&path.child("name"), &claim.name, syntax::dns_label(&claim.name));
        }
        let sources = [
            ("resourceClaimName", &claim.resource_claim_name),
            ("resourceClaimTemplateName", &claim.resource_claim_template_name),
        ];
        for (field, name) in sources {
            if let Some(name) = name {
                report.invalid_for_each(&path.child(field), name, syntax::dns_subdomain(name));
            }
        }
        if sources.iter().filter(|(_, name)| name.is_some()).count() != 1 {
            let why = "must have exactly one of resourceClaimName and resourceClaimTemplateName";
            report.invalid(&path, &claim.name, why);
        }
    }
}

fn claim_references(
    references: &[ResourceClaim],
    claims: &BTreeSet<&str>,
    path: &Path,
    report: &mut ValidationErrors,
) {
    let mut seen: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (index, reference) in references.iter().enumerate() {
        let path = path.index(index);
        let (name, request) = (reference.name.as_str(), reference.request.as_deref().unwrap_or_default());
        if !report.require_text(&path, name) {
            continue;
        }
        if !request.is_empty() {
            report.invalid_for_each(&path.child("request"), request, syntax::dns_label(request));
        }
        // a claim without a request means all of its requests
        let overlaps = |(other, its_request): &(&str, &str)| {
            *other == name && (request.is_empty() || its_request.is_empty() || *its_request == request)
        };
        if seen.iter().any(overlaps) {
            report.duplicate(&path, name);
        }
        seen.insert((name, request));
        if !claims.contains(name) {
            report.not_found(&path, name);
        }
    }
}

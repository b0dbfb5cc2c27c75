//! What the API server was asked, by its audit log.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use super::Cluster;

/// One request. A watch is one, however long it lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiRequest {
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: String,
    /// With its subresource: `pods`, `pods/status`, `serviceaccounts/token`. Empty for paths such as `/healthz`.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub uri: String,
    pub user_agent: String,
    /// The HTTP status.
    pub code: u64,
}

impl ApiRequest {
    fn parse(entry: &Value) -> ApiRequest {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &entry["objectRef"];
        let subresource = object["subresource"].as_str().map(|name| format!("/{name}")).unwrap_or_default();
        ApiRequest {
            user: text(&entry["user"]["username"]),
            verb: text(&entry["verb"]),
            resource: text(&object["resource"]) + &subresource,
            namespace: text(&object["namespace"]),
            name: text(&object["name"]),
            uri: text(&entry["requestURI"]),
            user_agent: text(&entry["userAgent"]),
            code: entry["responseStatus"]["code"].as_u64().unwrap_or_default(),
        }
    }
}

impl Cluster {
    /// Every request that this user made and the API server answered, in order. The log is written before
    /// the answer is: what a client has seen is in it.
    #[track_caller]
    pub fn api_requests(&self, user: &str) -> Vec<ApiRequest> {
        let log = fs::read_to_string(self.fact("audit")).expect("read the audit log");
        let mut requests: Vec<ApiRequest> = Vec::new();
        // A watch has two lines: when it begins and when it ends.
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        // The last line may be half written.
        for entry in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            if entry["user"]["username"] != user {
                continue;
            }
            let id = entry["auditID"].to_string();
            match seen.get(&id) {
                Some(&index) => requests[index] = ApiRequest::parse(&entry),
                None => {
                    seen.insert(id, requests.len());
                    requests.push(ApiRequest::parse(&entry));
                }
            }
        }
        requests
    }

    /// How often this user made which request: the key is `<verb> <resource>`, such as `patch pods/status`.
    #[track_caller]
    pub fn api_request_counts(&self, user: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for request in self.api_requests(user) {
            *counts.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1;
        }
        counts
    }
}

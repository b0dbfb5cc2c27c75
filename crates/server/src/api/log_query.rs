//! What `/containerLogs` is asked for, and which instance of a container can answer it.

use http::StatusCode;
use model::Wall;
use model::k8s::{ContainerStatus, PodStatus};
use ports::{LogOptions, LogOutput};

use super::query::Parameters;

/// A question that can't be answered: status and text.
pub(crate) type QueryError = (StatusCode, String);

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogQuery {
    pub options: LogOptions,
    pub previous: bool,
}

impl LogQuery {
    pub fn parse(parameters: &Parameters, now: Wall, split_streams: bool) -> Result<Self, QueryError> {
        let undecodable =
            || (StatusCode::BAD_REQUEST, r#"{"message": "Unable to decode query."}"#.to_owned());
        let invalid = || (StatusCode::UNPROCESSABLE_ENTITY, r#"{"message": "Invalid request."}"#.to_owned());
        let number = |name: &str| match parameters.first(name) {
            None => Ok(None),
            Some(text) => text.parse::<i64>().map(Some).map_err(|_| undecodable()),
        };
        // The old name of tailLines wins, and its old word for everything.
        let tail = match parameters.first("tail").filter(|text| !text.is_empty()) {
            Some("all") => None,
            Some(_) => number("tail")?,
            None => number("tailLines")?,
        };
        let (limit, since_seconds) = (number("limitBytes")?, number("sinceSeconds")?);
        let since_time = parameters.first("sinceTime").filter(|text| !text.is_empty());
        let since_time = since_time.map(str::parse::<jiff::Timestamp>).transpose();
        let since_time = since_time.map_err(|_| undecodable())?.map(Wall::from_timestamp);
        let wrong = tail.is_some_and(|lines| lines < 0)
            || limit.is_some_and(|bytes| bytes < 1)
            || since_seconds.is_some_and(|seconds| seconds < 1)
            || (since_seconds.is_some() && since_time.is_some());
        if wrong {
            return Err(invalid());
        }
        let ago = |seconds: i64| Wall(now.0.saturating_sub(seconds.saturating_mul(1_000_000_000)));
        let stream = parameters.first("stream").unwrap_or("All");
        let output = match stream {
            "All" => LogOutput::Both,
            _ if !split_streams => {
                let text = format!(
                    "unable to return the given log stream: {stream:?}. Please enable PodLogsQuerySplitStreams \
                     feature gate in kubelet"
                );
                return Err((StatusCode::BAD_REQUEST, text));
            }
            // The last lines of one output would have to be looked for among those of the other.
            _ if tail.is_some() => return Err(invalid()),
            "Stdout" => LogOutput::Stdout,
            "Stderr" => LogOutput::Stderr,
            _ => return Err(invalid()),
        };
        Ok(Self {
            options: LogOptions {
                follow: flag(parameters, "follow"),
                tail_lines: tail.map(i64::unsigned_abs),
                since: since_time.or(since_seconds.map(ago)),
                timestamps: flag(parameters, "timestamps"),
                limit_bytes: limit.map(i64::unsigned_abs),
                output,
                ..LogOptions::default()
            },
            previous: flag(parameters, "previous"),
        })
    }
}

/// Everything but `0` and `false` is yes, and so is nothing after the name.
fn flag(parameters: &Parameters, name: &str) -> bool {
    parameters.first(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
}

/// The id of the instance whose log is meant, with the runtime's name before it, or why there is none.
pub(super) fn instance(
    pod: &str,
    status: Option<&PodStatus>,
    container: &str,
    previous: bool,
) -> Result<String, String> {
    let text = |end: &str| format!("container {container:?} in pod {pod:?} {end}");
    let found = status.and_then(|status| find(status, container)).ok_or_else(|| text("is not available"))?;
    let known = |id: Option<&str>| id.filter(|id| !id.is_empty()).map(str::to_owned);
    let ended = |state: Option<&model::k8s::ContainerState>| {
        state.and_then(|state| state.terminated.clone()).map(|ended| known(ended.container_id.as_deref()))
    };
    let last = ended(found.last_state.as_ref());
    let state = found.state.as_ref();
    if previous {
        let none = || format!("previous terminated container {container:?} in pod {pod:?} not found");
        return last.flatten().ok_or_else(none);
    }
    if state.is_some_and(|state| state.running.is_some()) {
        return known(found.container_id.as_deref()).ok_or_else(|| text("is not available"));
    }
    if let Some(id) = ended(state) {
        return id.or(last.flatten()).ok_or_else(|| text("is terminated"));
    }
    if let Some(id) = last {
        return id.ok_or_else(|| text("is terminated"));
    }
    let waiting = state.and_then(|state| state.waiting.as_ref());
    Err(match waiting.map(|waiting| waiting.reason.as_deref().unwrap_or_default()) {
        Some("ErrImagePull") => text("is waiting to start: image can't be pulled"),
        Some("ImagePullBackOff") => text("is waiting to start: trying and failing to pull image"),
        Some(reason) => text(&format!("is waiting to start: {reason}")),
        None => text("is waiting to start - no logs yet"),
    })
}

fn find<'a>(status: &'a PodStatus, container: &str) -> Option<&'a ContainerStatus> {
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|found| found.name == container)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const SECOND: i64 = 1_000_000_000;

    fn parse(query: &str, split: bool) -> Result<LogQuery, (u16, String)> {
        let uri = format!("/containerLogs/a/b/c?{query}").parse().unwrap();
        LogQuery::parse(&Parameters::of(&uri), Wall(1000 * SECOND), split).map_err(|(s, t)| (s.as_u16(), t))
    }

    #[test]
    fn options_of_queries() {
        let plain = LogOptions::default;
        let check = |query: &str, expect: LogOptions| {
            assert_eq!(parse(query, false), Ok(LogQuery { options: expect, previous: false }), "{query}");
        };
        check("", plain());
        check("follow=true", LogOptions { follow: true, ..plain() });
        check("follow", LogOptions { follow: true, ..plain() });
        check("follow=False&timestamps=0", plain());
        check("timestamps=yes", LogOptions { timestamps: true, ..plain() });
        check(
            "tailLines=0&limitBytes=1",
            LogOptions { tail_lines: Some(0), limit_bytes: Some(1), ..plain() },
        );
        check("tailLines=3&tail=5", LogOptions { tail_lines: Some(5), ..plain() });
        check("tailLines=3&tail=all", plain());
        check("sinceSeconds=10", LogOptions { since: Some(Wall(990 * SECOND)), ..plain() });
        check("sinceTime=1970-01-01T00:00:01Z", LogOptions { since: Some(Wall(SECOND)), ..plain() });
        check("stream=All&unknown=x", plain());
        assert!(parse("previous=1", false).unwrap().previous);
        let one = |query| parse(query, true).unwrap().options.output;
        assert_eq!((one("stream=Stdout"), one("stream=Stderr")), (LogOutput::Stdout, LogOutput::Stderr));
    }

    #[test]
    fn queries_that_are_refused() {
        for query in ["tailLines=x", "limitBytes=1.5", "sinceSeconds=", "sinceTime=yesterday", "tail=some"] {
            let expect = (400, r#"{"message": "Unable to decode query."}"#.into());
            assert_eq!(parse(query, false), Err(expect), "{query}");
        }
        let invalid = |query, split| {
            let expect = (422, r#"{"message": "Invalid request."}"#.into());
            assert_eq!(parse(query, split), Err(expect), "{query}");
        };
        for query in [
            "tailLines=-1",
            "limitBytes=0",
            "sinceSeconds=0",
            "sinceSeconds=1&sinceTime=1970-01-01T00:00:01Z",
        ] {
            invalid(query, false);
        }
        invalid("stream=Stdin", true);
        invalid("stream=Stdout&tailLines=1", true);
        let gate = "unable to return the given log stream: \"Stdout\". Please enable PodLogsQuerySplitStreams \
                    feature gate in kubelet";
        assert_eq!(parse("stream=Stdout", false), Err((400, gate.into())));
    }

    #[test]
    fn instances_by_status() {
        let check = |state: Value, last: Value, previous: bool, expect: Result<&str, &str>| {
            let status = json!({ "containerStatuses": [{
                "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "containerID": "containerd://now", "state": state, "lastState": last,
            }] });
            let status: PodStatus = serde_json::from_value(status).unwrap();
            let found = instance("p", Some(&status), "c", previous);
            assert_eq!(found.as_deref().map_err(String::as_str), expect, "{state} {last} {previous}");
        };
        let ended = |id: &str| json!({ "terminated": { "exitCode": 1, "containerID": id } });
        let waiting = |reason: &str| json!({ "waiting": { "reason": reason } });
        let none = || json!({});
        check(json!({ "running": {} }), ended("containerd://old"), false, Ok("containerd://now"));
        check(json!({ "running": {} }), ended("containerd://old"), true, Ok("containerd://old"));
        check(
            json!({ "running": {} }),
            none(),
            true,
            Err(r#"previous terminated container "c" in pod "p" not found"#),
        );
        check(ended("containerd://a"), none(), false, Ok("containerd://a"));
        check(ended(""), ended("containerd://b"), false, Ok("containerd://b"));
        check(ended(""), none(), false, Err(r#"container "c" in pod "p" is terminated"#));
        check(waiting("CrashLoopBackOff"), ended("containerd://b"), false, Ok("containerd://b"));
        let because = |reason, end: &str| {
            let text = format!(r#"container "c" in pod "p" is waiting to start{end}"#);
            check(waiting(reason), none(), false, Err(&text));
        };
        because("ErrImagePull", ": image can't be pulled");
        because("ImagePullBackOff", ": trying and failing to pull image");
        because("ContainerCreating", ": ContainerCreating");
        check(none(), none(), false, Err(r#"container "c" in pod "p" is waiting to start - no logs yet"#));
        let unknown = instance("p", None, "c", false);
        assert_eq!(unknown.unwrap_err(), r#"container "c" in pod "p" is not available"#);
    }
}

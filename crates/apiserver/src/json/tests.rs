use super::*;

fn line(sort: &str, object: &str) -> Vec<u8> {
    format!(r#"{{"type":"{sort}","object":{object}}}"#).into_bytes()
}

#[test]
fn events_are_told_apart() {
    let pod = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","managedFields":[{"manager":"m"}]}}"#;
    let read = |sort: &str, object: &str| pod_event(&line(sort, object)).ok();
    let name = |pod: Pod| (pod.metadata.name, pod.metadata.managed_fields);
    for sort in ["ADDED", "MODIFIED", "DELETED"] {
        let found = match (sort, read(sort, pod)) {
            ("ADDED", Some(WatchEvent::Added(pod))) => name(pod),
            ("MODIFIED", Some(WatchEvent::Modified(pod))) => name(pod),
            ("DELETED", Some(WatchEvent::Deleted(identity))) => (Some(identity.name), None),
            other => panic!("{sort} was read as {:?}", other.1),
        };
        assert_eq!(found, (Some("a".into()), None), "{sort}");
    }
    let bookmark = |annotations: &str| {
        let object = format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"7","creationTimestamp":null{annotations}}},"spec":{{"containers":null}},"status":{{}}}}"#
        );
        read("BOOKMARK", &object)
    };
    let expect = |initial_end| {
        Some(WatchEvent::Bookmark { resource_version: "7".into(), ends_initial_events: initial_end })
    };
    assert_eq!(bookmark(""), expect(false));
    assert_eq!(bookmark(r#","annotations":{"k8s.io/initial-events-end":"true"}"#), expect(true));
    assert_eq!(read("LATER", pod), None);
    assert!(matches!(
        pod_event(&line("ERROR", r#"{"kind":"Status","code":410}"#)),
        Err(WatchLineError::ErrorStatus(_))
    ));
    assert!(matches!(pod_event(b"{\"type\":\"ADD"), Err(WatchLineError::Malformed(_))));
}

#[test]
fn lists_may_be_null() {
    let read = |json: &str| {
        pods(json.as_bytes()).map(|list| (list.items.len(), list.resource_version, list.continue_token))
    };
    let json = r#"{"kind":"PodList","metadata":{"resourceVersion":"5","continue":"c"},"items":[{"metadata":{"name":"a"}}]}"#;
    assert_eq!(read(json).expect("a list"), (1, "5".into(), "c".into()));
    let json = r#"{"kind":"PodList","metadata":{"resourceVersion":"5"},"items":null}"#;
    assert_eq!(read(json).expect("a list"), (0, "5".into(), String::new()));
}

/// Objects that an API server can store, each of which once ended its list or watch.
#[test]
fn odd_objects_are_read() {
    let meta = |more: &str| format!(r#"{{"name":"a","namespace":"ns","resourceVersion":"7"{more}}}"#);
    let deep = format!("{}{{}}{}", r#"{"f:a":"#.repeat(300), "}".repeat(300));
    let managed = format!(r#","managedFields":[{{"time":"10000-01-01T00:00:00Z","fieldsV1":{deep}}}]"#);
    for object in [
        format!(
            r#"{{"metadata":{},"spec":{{"clusterIP":"10.0.0.1"}},"status":{{"conditions":[{{"type":"T","lastTransitionTime":null}}]}}}}"#,
            meta("")
        ),
        format!(r#"{{"metadata":{},"spec":{{"clusterIP":"10.0.0.1","ports":null}}}}"#, meta(&managed)),
        format!(r#"{{"metadata":{},"spec":{{"clusterIP":"10.0.0.1"}},"status":5}}"#, meta(r#","labels":[]"#)),
        format!(r#"{{"metadata":{},"spec":{{"clusterIP":"10.0.0.1","type":["Later"]}}}}"#, meta("")),
    ] {
        let Ok(WatchEvent::Added(found)) = service_event(&line("ADDED", &object)) else {
            panic!("not read: {object}")
        };
        assert_eq!(found.metadata.resource_version.as_deref(), Some("7"), "{object}");
        assert_eq!(found.spec.and_then(|spec| spec.cluster_ip).as_deref(), Some("10.0.0.1"), "{object}");
        let pod =
            object.replace(r#""status":5"#, r#""status":null"#).replace(r#""labels":[]"#, r#""labels":null"#);
        let read = pods(format!(r#"{{"metadata":{{}},"items":[{pod}]}}"#).as_bytes()).expect("a list");
        assert_eq!((read.items.len(), read.unreadable.as_slice()), (1, &[][..]), "{pod}");
    }
}

#[test]
fn an_unreadable_object_costs_only_itself() {
    let good = r#"{"metadata":{"name":"good","uid":"1"}}"#;
    let bad = r#"{"metadata":{"name":"bad","namespace":"ns","uid":"2","resourceVersion":"9","labels":7},"spec":{"containers":"none"}}"#;
    let problem = "metadata.labels: invalid type: integer `7`, expected a map";
    let identity = ObjectIdentity {
        namespace: "ns".into(),
        name: "bad".into(),
        uid: "2".into(),
        resource_version: "9".into(),
    };
    let expect = UnreadableObject { identity: identity.clone(), problem: problem.into() };
    let listed =
        pods(format!(r#"{{"metadata":{{"resourceVersion":"8"}},"items":[{bad},{good},{bad}]}}"#).as_bytes());
    let listed = listed.expect("a list");
    assert_eq!(listed.items.len(), 1);
    assert_eq!(listed.unreadable, [expect.clone(), expect.clone()]);
    assert_eq!(listed.resource_version, "8");
    for sort in ["ADDED", "MODIFIED"] {
        assert_eq!(pod_event(&line(sort, bad)).ok(), Some(WatchEvent::Unreadable(expect.clone())), "{sort}");
    }
    // A deleted object need not be decodable.
    assert_eq!(pod_event(&line("DELETED", bad)).ok(), Some(WatchEvent::Deleted(identity)));
    let nameless = r#"{"metadata":[1]}"#;
    let Ok(WatchEvent::Unreadable(found)) = pod_event(&line("ADDED", nameless)) else { panic!("{nameless}") };
    assert_eq!(found.identity, ObjectIdentity::default());
    // Nobody could tell which object it was, so the agent has to list.
    assert!(matches!(pod_event(&line("DELETED", nameless)), Err(WatchLineError::Malformed(_))));
    // One field of the metadata does not cost the others.
    let half = r#"{"metadata":{"name":["x"],"uid":"2","resourceVersion":"9"}}"#;
    let Ok(WatchEvent::Unreadable(found)) = pod_event(&line("ADDED", half)) else { panic!("{half}") };
    let expect = ObjectIdentity { uid: "2".into(), resource_version: "9".into(), ..Default::default() };
    assert_eq!(found.identity, expect);
}

#[test]
fn fields_that_are_not_needed_cost_nothing() {
    let odd = r#"{"metadata":{"name":"n"},
        "spec":{"podCIDR":"10.1.0.0/24","providerID":"p","taints":[{"key":"k","effect":"NoSchedule"}],
                "unschedulable":true,"configSource":7,"later":[1]},
        "status":{"phase":{},"config":"none","volumesInUse":["v"]}}"#;
    let found = node(odd.as_bytes()).expect("a node");
    let spec = found.spec.expect("a spec");
    assert_eq!((spec.pod_cidr.as_deref(), spec.provider_id.as_deref()), (Some("10.1.0.0/24"), Some("p")));
    assert_eq!((spec.unschedulable, spec.taints.map(|taints| taints.len())), (Some(true), Some(1)));
    assert_eq!(found.status.and_then(|status| status.volumes_in_use), Some(vec!["v".to_owned()]));

    let odd = r#"{"metadata":{"name":"c","uid":"u"},
        "spec":{"volumeName":"v","accessModes":["ReadWriteOnce"],"volumeMode":"Block","selector":"all",
                "dataSource":1,"dataSourceRef":2},
        "status":{"phase":"Bound","modifyVolumeStatus":"now","capacity":{"storage":"1Gi"}}}"#;
    let found = claim(odd.as_bytes()).expect("a claim");
    let spec = found.spec.expect("a spec");
    assert_eq!((spec.volume_name.as_deref(), spec.volume_mode.as_deref()), (Some("v"), Some("Block")));
    assert_eq!(found.status.and_then(|status| status.phase).as_deref(), Some("Bound"));
}

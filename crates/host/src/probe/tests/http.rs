use std::time::Duration;

use model::probe::{HttpCheck, NetworkCheck, ProbeOutcome};

use super::{
    Answer, BRIEF, PATIENT, ask, ask_http, deserted, http, mute, redirect, response, serve, serve_at, shown,
};

fn ok() -> Answer {
    response("200 OK", &[], "fine")
}

#[track_caller]
fn assert_shown(outcome: ProbeOutcome, port: u16, expect: &str) {
    assert_eq!(shown(&outcome, port), expect);
}

async fn check(script: Vec<Answer>, expect: &str) {
    let server = serve(script).await;
    assert_shown(ask_http(http(server.port)).await, server.port, expect);
}

#[tokio::test]
async fn status_codes() {
    for (status, expect) in [
        ("200 OK", "good"),
        ("201 Created", "good"),
        ("204 No Content", "good"),
        ("299 Odd", "good"),
        ("300 Multiple Choices", "warning: Probe terminated redirects, Response body: fine"),
        ("304 Not Modified", "warning: Probe terminated redirects, Response body: "),
        ("399 Odd", "warning: Probe terminated redirects, Response body: fine"),
        ("400 Bad Request", "bad: HTTP probe failed with statuscode: 400"),
        ("401 Unauthorized", "bad: HTTP probe failed with statuscode: 401"),
        ("404 Not Found", "bad: HTTP probe failed with statuscode: 404"),
        ("500 Internal Server Error", "bad: HTTP probe failed with statuscode: 500"),
        ("503 Service Unavailable", "bad: HTTP probe failed with statuscode: 503"),
    ] {
        let body = if status.starts_with("204") || status.starts_with("304") { "" } else { "fine" };
        check(vec![response(status, &[], body)], expect).await;
    }
}

#[tokio::test]
async fn redirects_are_followed_on_the_same_host_only() {
    let moved = "warning: Probe terminated redirects, Response body: moved";
    for status in [
        "301 Moved Permanently",
        "302 Found",
        "303 See Other",
        "307 Temporary Redirect",
        "308 Permanent Redirect",
    ] {
        check(vec![redirect(status, "/there"), ok()], "good").await;
        check(vec![redirect(status, "http://elsewhere.test/"), ok()], moved).await;
    }
    check(
        vec![redirect("302 Found", "/a"), response("500 Oh", &[], "")],
        "bad: HTTP probe failed with statuscode: 500",
    )
    .await;
    // another port is the same host, another spelling is not
    let other = serve(vec![ok()]).await;
    let to_other_port = format!("http://127.0.0.1:{}/x", other.port);
    check(vec![redirect("302 Found", &to_other_port)], "good").await;
    check(vec![redirect("302 Found", "//localhost/")], moved).await;
    // nowhere to go
    check(vec![response("302 Found", &[], "moved")], moved).await;
    check(
        vec![redirect("302 Found", "ftp://x/")],
        "bad: Get \"http://@/\": unsupported protocol scheme \"ftp\"",
    )
    .await;
    // ten requests are enough
    check(vec![redirect("302 Found", "/again")], "bad: Get \"http://@/again\": stopped after 10 redirects")
        .await;
}

#[tokio::test]
async fn a_redirect_leads_where_it_says() {
    let mut server =
        serve(vec![redirect("302 Found", "next?x=1"), redirect("302 Found", "../up"), ok()]).await;
    let check = HttpCheck { target: "/a/b/c".into(), ..http(server.port) };
    assert_eq!(ask_http(check).await, ProbeOutcome::Success);
    let lines: Vec<_> =
        server.requests().iter().map(|head| head.lines().next().unwrap_or_default().to_owned()).collect();
    assert_eq!(lines, ["GET /a/b/c HTTP/1.1", "GET /a/b/next?x=1 HTTP/1.1", "GET /a/up HTTP/1.1"]);
}

/// The headers of the first request in the order of their names, with `@` for the server's address.
async fn sent(headers: &[(&str, &str)], target: &str) -> Vec<String> {
    let mut server = serve(vec![ok()]).await;
    let headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    let check = HttpCheck { headers, target: target.into(), ..http(server.port) };
    assert_eq!(ask_http(check).await, ProbeOutcome::Success);
    let head = server.requests().remove(0).replace(&format!("127.0.0.1:{}", server.port), "@");
    let mut lines: Vec<_> = head.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    lines[1..].sort();
    lines
}

#[tokio::test]
async fn headers() {
    let usual =
        ["GET / HTTP/1.1", "Accept: */*", "Connection: close", "Host: @", "User-Agent: kube-probe/1.36"];
    assert_eq!(sent(&[], "/").await, usual);
    let lines = sent(
        &[("x-own", "1"), ("X-Own", "2"), ("host", "h.test"), ("user-agent", "me"), ("accept", "text/x")],
        "/a?b",
    )
    .await;
    let expect = [
        "GET /a?b HTTP/1.1",
        "Accept: text/x",
        "Connection: close",
        "Host: h.test",
        "User-Agent: me",
        "X-Own: 1",
        "X-Own: 2",
    ];
    assert_eq!(lines, expect);
    // given as nothing, they are not sent
    let lines = sent(&[("Accept", ""), ("User-Agent", ""), ("Host", "")], "/").await;
    assert_eq!(lines, ["GET / HTTP/1.1", "Connection: close", "Host: @"]);
    // how a request is framed is not to be meddled with
    let lines =
        sent(&[("Content-Length", "5"), ("Transfer-Encoding", "chunked"), ("Trailer", "x")], "/").await;
    assert_eq!(lines, usual);
}

#[tokio::test]
async fn headers_that_can_not_be_sent_are_a_failure() {
    for (name, value, expect) in [
        ("a b", "x", "net/http: invalid header field name \"a b\""),
        ("a", "x\ny", "net/http: invalid header field value for \"a\""),
    ] {
        let check = HttpCheck { headers: vec![(name.into(), value.into())], ..http(1) };
        assert_shown(ask_http(check).await, 1, &format!("bad: Get \"http://@/\": {expect}"));
    }
}

#[tokio::test]
async fn a_redirect_keeps_the_given_host_as_long_as_it_names_none() {
    let given = || vec![("Host".to_owned(), "h.test".to_owned())];
    let mut server = serve(vec![redirect("302 Found", "/x"), ok()]).await;
    assert_eq!(ask_http(HttpCheck { headers: given(), ..http(server.port) }).await, ProbeOutcome::Success);
    let second = server.requests().remove(1);
    assert!(second.contains("Host: h.test\r\n"), "{second}");
    assert!(second.contains(&format!("Referer: http://127.0.0.1:{}/\r\n", server.port)), "{second}");

    let mut last = serve(vec![ok()]).await;
    let first = serve(vec![redirect("302 Found", &format!("http://127.0.0.1:{}/x", last.port))]).await;
    assert_eq!(ask_http(HttpCheck { headers: given(), ..http(first.port) }).await, ProbeOutcome::Success);
    let second = last.requests().remove(0);
    assert!(second.contains(&format!("Host: 127.0.0.1:{}\r\n", last.port)), "{second}");
}

#[tokio::test]
async fn nobody_there() {
    let port = deserted().await;
    let refused = "bad: Get \"http://@/\": dial tcp @: connect: connection refused";
    assert_shown(ask_http(http(port)).await, port, refused);
    let check = HttpCheck { host: "nowhere.invalid".into(), ..http(80) };
    let outcome = shown(&ask_http(check).await, 80);
    let expect = "bad: Get \"http://nowhere.invalid:80/\": dial tcp: lookup nowhere.invalid: ";
    assert!(outcome.starts_with(expect), "{outcome}");
}

#[tokio::test]
async fn an_empty_host_is_this_machine() {
    let mut server = serve(vec![ok()]).await;
    let check = HttpCheck { host: String::new(), ..http(server.port) };
    assert_eq!(ask_http(check).await, ProbeOutcome::Success);
    assert!(server.requests()[0].contains(&format!("Host: :{}\r\n", server.port)));
    let port = deserted().await;
    let check = HttpCheck { host: String::new(), ..http(port) };
    let expect = format!("bad: Get \"http://:{port}/\": dial tcp :{port}: connect: connection refused");
    assert_shown(ask_http(check).await, port, &expect);
}

#[tokio::test]
async fn names_and_addresses_of_either_family() {
    let server = serve_at("::1", vec![ok()], None).await;
    let check = HttpCheck { host: "::1".into(), ..http(server.port) };
    assert_eq!(ask_http(check).await, ProbeOutcome::Success);
    let server = serve(vec![ok()]).await;
    let check = HttpCheck { host: "localhost".into(), ..http(server.port) };
    assert_eq!(ask_http(check).await, ProbeOutcome::Success);
}

#[tokio::test]
async fn silence_lasts_as_long_as_the_timeout() {
    let no_headers = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    let port = mute().await;
    let outcome = ask(NetworkCheck::Http(http(port)), BRIEF).await;
    assert_shown(outcome, port, &format!("bad: Get \"http://@/\": {no_headers}"));
    for answer in [Answer::Hang, Answer::SayAndHang("HTTP/1.1 200 OK\r\nX: ".into())] {
        let server = serve(vec![answer]).await;
        let outcome = ask(NetworkCheck::Http(http(server.port)), BRIEF).await;
        assert_shown(outcome, server.port, &format!("bad: Get \"http://@/\": {no_headers}"));
    }
    // the time is for all requests together
    let server = serve(vec![redirect("302 Found", "/slow"), Answer::Hang]).await;
    let outcome = ask(NetworkCheck::Http(http(server.port)), BRIEF).await;
    assert_shown(outcome, server.port, &format!("bad: Get \"http://@/slow\": {no_headers}"));
}

#[tokio::test]
async fn a_body_that_does_not_end_is_an_error_and_no_answer() {
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";
    let server = serve(vec![Answer::SayAndHang(half.into())]).await;
    let outcome = ask(NetworkCheck::Http(http(server.port)), BRIEF).await;
    let no_body = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
    assert_shown(outcome, server.port, &format!("failure error: {no_body}"));
    check(vec![Answer::Say(half.into())], "failure error: unexpected EOF").await;
}

#[tokio::test]
async fn of_a_long_body_the_beginning_is_enough() {
    let long = "x".repeat(20_000);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{long}");
    check(vec![Answer::SayAndHang(head)], "good").await;
    let head = format!("HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 1000000\r\n\r\n{long}");
    let expect = format!("warning: Probe terminated redirects, Response body: {}", &long[..10240]);
    check(vec![Answer::SayAndHang(head)], &expect).await;
}

#[tokio::test]
async fn connections_that_break() {
    check(vec![Answer::Close], "bad: Get \"http://@/\": EOF").await;
    let server = serve(vec![Answer::Reset]).await;
    let outcome = shown(&ask_http(http(server.port)).await, server.port);
    assert!(outcome.starts_with("bad: Get \"http://@/\": read tcp 127.0.0.1:"), "{outcome}");
    assert!(outcome.ends_with("->@: read: connection reset by peer"), "{outcome}");
    let malformed =
        "bad: Get \"http://@/\": net/http: HTTP/1.x transport connection broken: malformed HTTP response";
    check(vec![Answer::Say("what do you want?\r\n\r\n".into())], malformed).await;
}

#[tokio::test]
async fn an_attempt_that_is_dropped_leaves_no_connection() {
    let server = serve(vec![Answer::Hang]).await;
    let asking = ask(NetworkCheck::Http(http(server.port)), PATIENT);
    assert!(tokio::time::timeout(Duration::from_millis(50), asking).await.is_err());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let remote = format!("0100007F:{:04X}", server.port);
    let established = |line: &&str| {
        line.split_whitespace().nth(2) == Some(&remote) && line.split_whitespace().nth(3) == Some("01")
    };
    assert_eq!(table.lines().filter(established).count(), 0, "{table}");
}

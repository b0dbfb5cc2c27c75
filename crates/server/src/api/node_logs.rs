//! `/logs/`: the node's own log files, as a tree.
//!
//! What is opened, and what is not, is in [`node_log_files`](super::node_log_files).

use std::fs::File;
use std::io;
use std::path::Path as FilePath;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::node_log_files::{self, OpenedPath};
use super::node_query::{self, NodeQuery, QueryError};
use super::query::Parameters;
use super::{Api, SecureApi, plain_text};
use crate::health::plain;

const NOT_FOUND: &str = "404 page not found\n";
/// Looked at to tell text from other things.
const SNIFFED_BYTES: usize = 512;

pub(super) async fn read_root(State(api): Api, request: Request) -> Response {
    match parse_query(&api, &request) {
        Ok(Some(query)) => {
            let gzip = request.headers().get(header::ACCEPT_ENCODING).is_some_and(|taken| taken == "gzip");
            node_query::answer(&api, query, gzip).await
        }
        Ok(None) => answer(&api, String::new(), request.headers()).await,
        Err((status, text)) => plain_text(status, text),
    }
}

pub(super) async fn read(State(api): Api, Path(path): Path<String>, request: Request) -> Response {
    match parse_query(&api, &request) {
        Ok(Some(_)) => plain_text(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode\n"),
        Ok(None) => answer(&api, path, request.headers()).await,
        Err((status, text)) => plain_text(status, text),
    }
}

/// Is it a question to the journal, where those are answered?
fn parse_query(api: &SecureApi, request: &Request) -> Result<Option<NodeQuery>, QueryError> {
    if !api.settings.node_log_query {
        return Ok(None);
    }
    NodeQuery::parse(&Parameters::of(request.uri()))
}

async fn answer(api: &SecureApi, path: String, headers: &HeaderMap) -> Response {
    let (directory, asked) = (api.settings.node_log_dir.clone(), path.clone());
    let found = tokio::task::spawn_blocking(move || node_log_files::open(&directory, &asked)).await;
    match found.map_err(io::Error::other).and_then(|found| found) {
        Ok(OpenedPath::Directory(_)) if !path.is_empty() && !path.ends_with('/') => {
            let name = path.rsplit('/').next().unwrap_or_default();
            let place = format!("{}/", percent_encode(name));
            (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, place)]).into_response()
        }
        Ok(OpenedPath::Directory(names)) => listing(&names),
        Ok(OpenedPath::File(file)) => match content(&path, file, headers).await {
            Ok(answer) => answer,
            Err(error) => plain_text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            plain(StatusCode::FORBIDDEN, "403 Forbidden\n".into())
        }
        Err(_) => plain(StatusCode::NOT_FOUND, NOT_FOUND.into()),
    }
}

fn listing(names: &[String]) -> Response {
    let mut page =
        String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for name in names {
        let shown =
            name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
        page += &format!("<a href=\"{}\">{}</a>\n", percent_encode(name), shown.replace('\'', "&#39;"));
    }
    page += "</pre>\n";
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response()
}

/// A name as part of a URL; a colon would look like a scheme.
fn percent_encode(name: &str) -> String {
    let mut out = String::new();
    if name.contains(':') {
        out += "./";
    }
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z'
            | b'A'..=b'Z'
            | b'0'..=b'9'
            | b'-'
            | b'_'
            | b'.'
            | b'~'
            | b'/'
            | b'@'
            | b':'
            | b'+' => {
                out.push(char::from(byte));
            }
            other => out += &format!("%{other:02X}"),
        }
    }
    out
}

async fn content(path: &str, file: File, headers: &HeaderMap) -> io::Result<Response> {
    let mut file = tokio::fs::File::from_std(file);
    let size = file.metadata().await?.len();
    let mut head = vec![0; SNIFFED_BYTES];
    let length = file.read(&mut head).await?;
    let kind = content_type(path, &head[..length]);
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let (status, start, end) = match range.map(|text| parse_range(text, size)) {
        None | Some(ByteRange::Whole) => (StatusCode::OK, 0, size),
        Some(ByteRange::Bytes(start, end)) => (StatusCode::PARTIAL_CONTENT, start, end),
        Some(ByteRange::Outside) => {
            let told = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, told, "invalid range: failed to overlap\n")
                .into_response());
        }
    };
    file.seek(io::SeekFrom::Start(start)).await?;
    let body = Body::from_stream(ReaderStream::new(file.take(end - start)));
    let mut answer = (status, [(header::CONTENT_TYPE, kind)], body).into_response();
    let told = answer.headers_mut();
    told.insert(header::CONTENT_LENGTH, (end - start).into());
    told.insert(header::ACCEPT_RANGES, http::HeaderValue::from_static("bytes"));
    if status == StatusCode::PARTIAL_CONTENT
        && let Ok(value) = format!("bytes {start}-{}/{size}", end - 1).parse()
    {
        told.insert(header::CONTENT_RANGE, value);
    }
    Ok(answer)
}

fn content_type(path: &str, head: &[u8]) -> &'static str {
    match FilePath::new(path).extension().and_then(|end| end.to_str()) {
        Some("gz") => "application/gzip",
        Some("json") => "application/json",
        _ if head.contains(&0) => "application/octet-stream",
        _ => "text/plain; charset=utf-8",
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ByteRange {
    Whole,
    /// From here to before there.
    Bytes(u64, u64),
    Outside,
}

/// One range; several of them get the whole, which is allowed as well.
fn parse_range(range: &str, size: u64) -> ByteRange {
    let Some((first, last)) = range.strip_prefix("bytes=").and_then(|one| one.trim().split_once('-')) else {
        return ByteRange::Whole;
    };
    let (first, last) = (first.trim(), last.trim());
    let found = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => (first, last.saturating_add(1).min(size)),
        (Ok(first), Err(_)) if last.is_empty() => (first, size),
        (Err(_), Ok(count)) if first.is_empty() => (size.saturating_sub(count), size),
        _ => return ByteRange::Whole,
    };
    if found.0 < found.1 { ByteRange::Bytes(found.0, found.1) } else { ByteRange::Outside }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ten_bytes() {
        for (range, expect) in [
            ("bytes=0-3", ByteRange::Bytes(0, 4)),
            ("bytes=5-", ByteRange::Bytes(5, 10)),
            ("bytes=-3", ByteRange::Bytes(7, 10)),
            ("bytes=8-100", ByteRange::Bytes(8, 10)),
            ("bytes=-100", ByteRange::Bytes(0, 10)),
            ("bytes=10-", ByteRange::Outside),
            ("bytes=-0", ByteRange::Outside),
            ("bytes=5-3", ByteRange::Whole),
            ("bytes=0-1,3-4", ByteRange::Whole),
            ("lines=1-2", ByteRange::Whole),
        ] {
            assert_eq!(parse_range(range, 10), expect, "{range}");
        }
    }

    #[test]
    fn names_in_links() {
        assert_eq!(percent_encode("a b&c"), "a%20b%26c");
        assert_eq!(percent_encode("a:b"), "./a:b");
    }
}

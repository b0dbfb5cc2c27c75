//! `/debug/pprof/`: where the agent spends its time, as the tools of the Go world read it. There is no garbage collector
//! and there are no goroutines here, so what tells of those says so.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{StatusCode, header};
use ports::{CpuSamples, ProfileError};

use super::query::Parameters;
use super::{Api, plain_text};

const DEFAULT_SECONDS: u64 = 30;
/// Longer would outlive the room for samples.
const MAX_SECONDS: u64 = 600;
/// What the reference has besides, and why it can't be here.
const UNSUPPORTED_PROFILES: [(&str, &str); 8] = [
    ("allocs", "allocations are not recorded"),
    ("block", "blocking is not recorded"),
    ("goroutine", "there are no goroutines; /debug/why shows what pods wait for"),
    ("heap", "allocations are not recorded"),
    ("mutex", "lock contention is not recorded"),
    ("symbol", "symbols are resolved by pprof from the binary"),
    ("threadcreate", "thread creation is not recorded"),
    ("trace", "executions are not traced; tracing.endpoint exports spans"),
];

pub(super) async fn index() -> Response {
    let mut page = String::from("<html>\n<head>\n<title>/debug/pprof/</title>\n</head>\n<body>\n<ul>\n");
    for name in ["cmdline", "profile"] {
        page += &format!("<li><a href=\"{name}\">{name}</a></li>\n");
    }
    for (name, why) in UNSUPPORTED_PROFILES {
        page += &format!("<li>{name}: not available: {why}</li>\n");
    }
    page += "</ul>\n</body>\n</html>\n";
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response()
}

pub(super) async fn read(State(api): Api, Path(name): Path<String>, request: Request) -> Response {
    match name.as_str() {
        "cmdline" => match fs::read("/proc/self/cmdline") {
            Ok(words) => {
                let words = words.strip_suffix(&[0]).unwrap_or(&words);
                plain_text(StatusCode::OK, String::from_utf8_lossy(words))
            }
            Err(error) => plain_text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
        "profile" => profile(State(api), request).await,
        other => match UNSUPPORTED_PROFILES.iter().find(|(absent, _)| *absent == other) {
            Some((name, why)) => {
                plain_text(StatusCode::NOT_IMPLEMENTED, format!("no {name} profile: {why}\n"))
            }
            None => plain_text(StatusCode::NOT_FOUND, "Unknown profile\n"),
        },
    }
}

async fn profile(State(api): Api, request: Request) -> Response {
    let seconds = Parameters::of(request.uri()).first("seconds").and_then(|text| text.parse::<u64>().ok());
    let seconds = seconds.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_SECONDS).min(MAX_SECONDS);
    match api.profiler.sample(Duration::from_secs(seconds)).await {
        Ok(samples) => match encode_pprof(&samples) {
            Ok(body) => {
                let kind = (header::CONTENT_TYPE, "application/octet-stream");
                let name = (header::CONTENT_DISPOSITION, "attachment; filename=\"profile\"");
                ([kind, name, (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], body).into_response()
            }
            Err(error) => plain_text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
        Err(error) => {
            let status = match error {
                ProfileError::Unsupported(_) => StatusCode::NOT_IMPLEMENTED,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            plain_text(status, format!("{error}\n"))
        }
    }
}

/// As pprof's `profile.proto` has it, packed. Addresses are not named: the tool does that from the files.
fn encode_pprof(samples: &CpuSamples) -> std::io::Result<Vec<u8>> {
    let mut profile = ProtoMessage::default();
    let mut strings = StringTable::default();
    let kind = |strings: &mut StringTable, what: &str, unit: &str| {
        let (what, unit) = (strings.number(what), strings.number(unit));
        ProtoMessage::default().with_number(1, what).with_number(2, unit)
    };
    for (what, unit) in [("samples", "count"), ("cpu", "nanoseconds")] {
        let kind = kind(&mut strings, what, unit);
        profile.message(1, &kind);
    }
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for address in &samples.addresses {
        *counts.entry(*address).or_default() += 1;
    }
    let period = u64::try_from(samples.period.as_nanos()).unwrap_or_default();
    for (location, count) in (1..).zip(counts.values()) {
        let sample =
            ProtoMessage::default().with_packed(1, &[location]).with_packed(2, &[*count, count * period]);
        profile.message(2, &sample);
    }
    for (number, code) in (1..).zip(&samples.mappings) {
        let mapping = ProtoMessage::default().with_number(1, number).with_number(2, code.start);
        let mapping = mapping.with_number(3, code.end).with_number(4, code.offset);
        profile.message(3, &mapping.with_number(5, strings.number(&code.path)));
    }
    for (location, address) in (1..).zip(counts.keys()) {
        let inside = |code: &ports::CodeMapping| (code.start..code.end).contains(address);
        let mapping = samples.mappings.iter().position(inside).map_or(0, |index| index as u64 + 1);
        let location = ProtoMessage::default().with_number(1, location).with_number(2, mapping);
        profile.message(4, &location.with_number(3, *address));
    }
    let kind = kind(&mut strings, "cpu", "nanoseconds");
    for text in &strings.0 {
        profile.bytes(6, text.as_bytes());
    }
    let nanos = |time: i64| u64::try_from(time).unwrap_or_default();
    profile.number(9, nanos(samples.begun.0));
    profile.number(10, u64::try_from(samples.lasted.as_nanos()).unwrap_or_default());
    profile.message(11, &kind);
    profile.number(12, period);
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&profile.0)?;
    packed.finish()
}

/// Each text once; the first one is empty.
struct StringTable(Vec<String>);

impl Default for StringTable {
    fn default() -> Self {
        Self(vec![String::new()])
    }
}

impl StringTable {
    fn number(&mut self, text: &str) -> u64 {
        let known = self.0.iter().position(|known| known == text);
        let index = known.unwrap_or_else(|| {
            self.0.push(text.to_owned());
            self.0.len() - 1
        });
        index as u64
    }
}

/// A message of Protocol Buffers, field by field.
#[derive(Default)]
struct ProtoMessage(Vec<u8>);

impl ProtoMessage {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, message: &ProtoMessage) {
        self.bytes(field, &message.0);
    }

    fn with_number(mut self, field: u64, value: u64) -> Self {
        self.number(field, value);
        self
    }

    fn with_packed(mut self, field: u64, values: &[u64]) -> Self {
        let mut packed = ProtoMessage::default();
        for value in values {
            packed.varint(*value);
        }
        self.bytes(field, &packed.0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Wall;
    use ports::CodeMapping;

    #[test]
    fn a_profile_in_the_tools_format() {
        let code = CodeMapping { start: 0x1000, end: 0x2000, offset: 0, path: "/a".into() };
        let samples = CpuSamples {
            addresses: vec![0x1234, 0x9999, 0x1234],
            mappings: vec![code],
            begun: Wall(1),
            lasted: Duration::from_nanos(2),
            period: Duration::from_nanos(10),
        };
        let packed = encode_pprof(&samples).unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&packed[..]), &mut bytes).unwrap();
        let mut expect = ProtoMessage::default();
        // samples/count and cpu/nanoseconds, by the numbers of their texts
        expect.bytes(1, &[8, 1, 16, 2]);
        expect.bytes(1, &[8, 3, 16, 4]);
        // two samples of 20 ns, one of 10 ns
        expect.bytes(2, &[10, 1, 1, 18, 2, 2, 20]);
        expect.bytes(2, &[10, 1, 2, 18, 2, 1, 10]);
        expect.bytes(3, &[8, 1, 16, 0x80, 0x20, 24, 0x80, 0x40, 32, 0, 40, 5]);
        expect.bytes(4, &[8, 1, 16, 1, 24, 0xb4, 0x24]);
        // the second address belongs to no known code
        expect.bytes(4, &[8, 2, 16, 0, 24, 0x99, 0xb3, 0x02]);
        for text in ["", "samples", "count", "cpu", "nanoseconds", "/a"] {
            expect.bytes(6, text.as_bytes());
        }
        expect.number(9, 1);
        expect.number(10, 2);
        expect.bytes(11, &[8, 3, 16, 4]);
        expect.number(12, 10);
        assert_eq!(bytes, expect.0);
    }
}

//! The figures side by side, and whether the targets are met.

use std::fmt::Write;

use crate::{Figures, Sizes};

#[derive(Clone, Copy)]
enum Unit {
    Milliseconds,
    Seconds,
    Millicores,
    MiB,
    Count,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Unit::Milliseconds => format!("{:.0} ms", value * 1000.0),
            Unit::Seconds => format!("{value:.2} s"),
            Unit::Millicores => format!("{:.3} %", value / 10.0),
            Unit::MiB => format!("{value:.1} MiB"),
            Unit::Count => format!("{value:.1}"),
        }
    }
}

struct Report<'a> {
    reference: &'a Figures,
    rubelet: &'a Figures,
    upstream: &'a Figures,
    text: String,
}

pub fn render(reference: &Figures, rubelet: &Figures, upstream: &Figures, sizes: Sizes) -> String {
    let mut report = Report { reference, rubelet, upstream, text: String::new() };
    let burst = sizes.burst;
    report.line("\n| figure | the runtime alone | rubelet | upstream | rubelet / upstream |");
    report.line("| --- | --- | --- | --- | --- |");
    report.row("binary", "binary", Unit::MiB);
    report.row("cold start to healthy", "cold start", Unit::Milliseconds);
    for (title, name) in [
        ("manifest to process running", "running"),
        ("exit to restarted", "restarted"),
        ("exit to status on the read-only port", "exit reported"),
        ("manifest removed to SIGTERM", "sigterm"),
        ("manifest removed to no process left", "processes gone"),
        ("manifest removed to nothing left at all", "nothing left"),
    ] {
        report.quantiles(title, name);
    }
    report.row(&format!("burst of {burst} pods, all running"), "burst", Unit::Seconds);
    report.row("burst: kubelet's CPU", "burst cpu", Unit::Seconds);
    report.row("burst: containerd's CPU", "burst containerd cpu", Unit::Seconds);
    report.row("burst: kubelet's memory, peak", "burst memory peak", Unit::MiB);
    for pods in [0, burst / 2, burst] {
        report.row(
            &format!("at rest, {pods} pods: kubelet's CPU"),
            &format!("rest cpu {pods}"),
            Unit::Millicores,
        );
        let name = format!("rest containerd cpu {pods}");
        report.row(&format!("at rest, {pods} pods: containerd's CPU"), &name, Unit::Millicores);
        report.row(&format!("at rest, {pods} pods: resident memory"), &format!("memory {pods}"), Unit::MiB);
        let name = format!("anonymous memory {pods}");
        report.row(&format!("at rest, {pods} pods: anonymous memory"), &name, Unit::MiB);
    }
    let alone = format!("at rest, {burst} pods, no kubelet: containerd's CPU");
    report.row(&alone, "rest containerd cpu alone", Unit::Millicores);
    report.row(&format!("restart with {burst} pods: healthy"), "restart healthy", Unit::Milliseconds);
    report.row(&format!("restart with {burst} pods: all known"), "restart all known", Unit::Milliseconds);
    report.row(&format!("restart with {burst} pods: CPU"), "restart cpu", Unit::Seconds);
    report.row("restart: containers disturbed", "restart disturbed", Unit::Count);
    report.quantiles("API: created to Running", "api running");
    report.quantiles("API: exit to status", "api exit");
    report.quantiles("API: deleted to object gone", "api gone");
    report.requests();
    report.targets(burst);
    report.text
}

impl Report<'_> {
    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn quantiles(&mut self, title: &str, name: &str) {
        for quantile in ["p50", "p90", "p99"] {
            self.row(&format!("{title}, {quantile}"), &format!("{name} {quantile}"), Unit::Milliseconds);
        }
    }

    fn row(&mut self, title: &str, name: &str, unit: Unit) {
        let show = |figures: &Figures| figures.get(name).map_or("-".into(), |value| unit.show(*value));
        let ratio = match (self.rubelet.get(name), self.upstream.get(name)) {
            (Some(ours), Some(theirs)) if *theirs > 0.0 => format!("{:.3}", ours / theirs),
            _ => "-".to_owned(),
        };
        let (floor, ours, theirs) = (show(self.reference), show(self.rubelet), show(self.upstream));
        let floor = if floor == "-" { String::new() } else { floor };
        let _ = writeln!(self.text, "| {title} | {floor} | {ours} | {theirs} | {ratio} |");
    }

    /// Requests per pod, each kind that either side made.
    fn requests(&mut self) {
        let kinds =
            self.rubelet.keys().chain(self.upstream.keys()).filter(|name| name.starts_with("api requests"));
        let kinds: std::collections::BTreeSet<String> = kinds.cloned().collect();
        for kind in kinds {
            let title = kind.replacen("api requests", "API: requests per pod", 1);
            self.row(&title, &kind, Unit::Count);
        }
    }

    fn targets(&mut self, burst: usize) {
        self.line("\n| target | rubelet | upstream | ratio | at most | |");
        self.line("| --- | --- | --- | --- | --- | --- |");
        for (title, name) in [
            ("manifest to running, beyond the runtime's own time (p50)", "running p50"),
            ("exit to restarted, beyond the runtime's own time (p50)", "restarted p50"),
            ("removed to no process left, beyond the runtime's own time (p50)", "processes gone p50"),
            ("removed to nothing left, beyond the runtime's own time (p50)", "nothing left p50"),
        ] {
            let floor = self.reference.get(name).copied();
            let own = |figures: &Figures| Some((figures.get(name)? - floor?).max(0.0));
            let (ours, theirs) = (own(self.rubelet), own(self.upstream));
            self.target(title, (ours, theirs), Unit::Milliseconds, 0.1);
        }
        let of = |figures: &Figures, name: &str| figures.get(name).copied();
        let both = |name: &str| (of(self.rubelet, name), of(self.upstream, name));
        let rest = both(&format!("rest cpu {burst}"));
        // What containerd uses with a kubelet beyond what it uses without one.
        let caused = |figures: &Figures| {
            let with = figures.get(&format!("rest containerd cpu {burst}"))?;
            Some((with - figures.get("rest containerd cpu alone")?).max(0.0))
        };
        let caused = (caused(self.rubelet), caused(self.upstream));
        let memory: Vec<_> = [0, burst]
            .into_iter()
            .flat_map(|pods| {
                [("resident", format!("memory {pods}")), ("anonymous", format!("anonymous memory {pods}"))]
                    .map(|(kind, name)| (format!("{kind} memory at rest, {pods} pods"), both(&name)))
            })
            .collect();
        let (elapsed, cpu) = (both("burst"), both("burst cpu"));
        self.target(&format!("CPU at rest, {burst} pods"), rest, Unit::Millicores, 1.0 / 20.0);
        self.target("containerd's CPU caused by the kubelet, at rest", caused, Unit::Millicores, 0.2);
        for (title, figures) in memory {
            self.target(&title, figures, Unit::MiB, 0.2);
        }
        self.target(&format!("burst of {burst} pods"), elapsed, Unit::Seconds, 0.75);
        self.target("burst: kubelet's CPU", cpu, Unit::Seconds, 1.0 / 6.0);
    }

    fn target(&mut self, title: &str, (ours, theirs): (Option<f64>, Option<f64>), unit: Unit, limit: f64) {
        let show = |value: Option<f64>| value.map_or("-".to_owned(), |value| unit.show(value));
        let (ratio, verdict) = match (ours, theirs) {
            (Some(ours), Some(theirs)) if ours <= theirs * limit => {
                (format!("{:.3}", safe(ours, theirs)), "hit")
            }
            (Some(ours), Some(theirs)) => (format!("{:.3}", safe(ours, theirs)), "MISSED"),
            _ => ("-".to_owned(), "not measured"),
        };
        let (ours, theirs) = (show(ours), show(theirs));
        let _ = writeln!(self.text, "| {title} | {ours} | {theirs} | {ratio} | {limit:.3} | {verdict} |");
    }
}

fn safe(ours: f64, theirs: f64) -> f64 {
    if theirs > 0.0 { ours / theirs } else { f64::from(u8::from(ours > 0.0)) }
}

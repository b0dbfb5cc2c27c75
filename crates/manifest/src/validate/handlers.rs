//! Probes and lifecycle hooks.

use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, Probe, SleepAction, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::pod_context::{PodContext, port_number};
use super::report::{Path, ValidationErrors};
use super::syntax;

pub(super) fn check(container: &Container, pod: &PodContext<'_>, path: &Path, report: &mut ValidationErrors) {
    lifecycle(container, pod, &path.child("lifecycle"), report);
    for (field, probe) in
        [("livenessProbe", &container.liveness_probe), ("startupProbe", &container.startup_probe)]
    {
        let Some(probe) = probe else { continue };
        let path = path.child(field);
        check_probe(probe, &path, report);
        if probe.success_threshold.unwrap_or(0) != 1 {
            report.invalid(
                &path.child("successThreshold"),
                probe.success_threshold.unwrap_or(0),
                "must be 1",
            );
        }
    }
    if let Some(probe) = &container.readiness_probe {
        let path = path.child("readinessProbe");
        check_probe(probe, &path, report);
        if let Some(grace) = probe.termination_grace_period_seconds {
            let why = "a readiness probe never ends a container";
            report.invalid(&path.child("terminationGracePeriodSeconds"), grace, why);
        }
    }
}

fn check_probe(probe: &Probe, path: &Path, report: &mut ValidationErrors) {
    let handler = Handler {
        exec: probe.exec.as_ref(),
        http_get: probe.http_get.as_ref(),
        tcp_socket: probe.tcp_socket.as_ref(),
        grpc: probe.grpc.as_ref(),
        sleep: None,
    };
    handler.check(None, path, report);
    report.not_negative(&path.child("initialDelaySeconds"), probe.initial_delay_seconds);
    report.not_negative(&path.child("timeoutSeconds"), probe.timeout_seconds);
    report.not_negative(&path.child("periodSeconds"), probe.period_seconds);
    report.not_negative(&path.child("successThreshold"), probe.success_threshold);
    report.not_negative(&path.child("failureThreshold"), probe.failure_threshold);
    if let Some(grace) = probe.termination_grace_period_seconds.filter(|grace| *grace <= 0) {
        report.invalid(&path.child("terminationGracePeriodSeconds"), grace, "must be greater than 0");
    }
}

fn lifecycle(container: &Container, pod: &PodContext<'_>, path: &Path, report: &mut ValidationErrors) {
    let Some(lifecycle) = &container.lifecycle else { return };
    for (field, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        let Some(hook) = hook else { continue };
        let handler = Handler {
            exec: hook.exec.as_ref(),
            http_get: hook.http_get.as_ref(),
            tcp_socket: hook.tcp_socket.as_ref(),
            grpc: None,
            sleep: hook.sleep.as_ref(),
        };
        handler.check(pod.grace_period(), &path.child(field), report);
    }
    if let Some(signal) = &lifecycle.stop_signal {
        stop_signal(signal, pod.os(), &path.child("stopSignal"), report);
    }
}

fn stop_signal(signal: &str, os: Option<&str>, path: &Path, report: &mut ValidationErrors) {
    match os {
        None => report.forbidden(path, "needs spec.os.name, since signals differ between systems"),
        Some("windows") => report.one_of(path, signal, &["SIGKILL", "SIGTERM"]),
        Some("linux") if !is_linux_signal(signal) => report.invalid(path, signal, "is not a signal of Linux"),
        Some(_) => {}
    }
}

fn is_linux_signal(signal: &str) -> bool {
    const NAMES: &[&str] = &[
        "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL",
        "PIPE", "POLL", "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP",
        "TTIN", "TTOU", "URG", "USR1", "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ", "RTMIN", "RTMAX",
    ];
    let offset_within = |offset: &str, most: u8| {
        !offset.starts_with('0') && offset.parse::<u8>().is_ok_and(|offset| (1..=most).contains(&offset))
    };
    let Some(name) = signal.strip_prefix("SIG") else { return false };
    match (name.strip_prefix("RTMIN+"), name.strip_prefix("RTMAX-")) {
        (Some(offset), _) => offset_within(offset, 15),
        (_, Some(offset)) => offset_within(offset, 14),
        _ => NAMES.contains(&name),
    }
}

/// The handlers that probes and hooks have between them.
struct Handler<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HTTPGetAction>,
    tcp_socket: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
}

impl Handler<'_> {
    fn check(&self, grace_period: Option<i64>, path: &Path, report: &mut ValidationErrors) {
        let mut first = None;
        let present = [
            ("exec", self.exec.is_some()),
            ("httpGet", self.http_get.is_some()),
            ("tcpSocket", self.tcp_socket.is_some()),
            ("grpc", self.grpc.is_some()),
            ("sleep", self.sleep.is_some()),
        ];
        for (field, _) in present.into_iter().filter(|(_, present)| *present) {
            match first {
                None => first = Some(field),
                Some(_) => report.forbidden(&path.child(field), "only one handler may be given"),
            }
        }
        let Some(field) = first else {
            return report.required_because(path, "one handler must be given");
        };
        let path = path.child(field);
        match field {
            "exec" if self.exec.is_some_and(|exec| exec.command.as_ref().is_none_or(Vec::is_empty)) => {
                report.required(&path.child("command"));
            }
            "httpGet" => self.http_get.into_iter().for_each(|action| http_get(action, &path, report)),
            "tcpSocket" => {
                self.tcp_socket
                    .into_iter()
                    .for_each(|action| port(&action.port, &path.child("port"), report));
            }
            "grpc" => {
                self.grpc
                    .into_iter()
                    .for_each(|action| port_number(action.port, &path.child("port"), report));
            }
            "sleep" => self.sleep.into_iter().for_each(|action| sleep(action, grace_period, &path, report)),
            _ => {}
        }
    }
}

fn http_get(action: &HTTPGetAction, path: &Path, report: &mut ValidationErrors) {
    report.require_text(&path.child("path"), action.path.as_deref().unwrap_or_default());
    port(&action.port, &path.child("port"), report);
    report.one_of(&path.child("scheme"), action.scheme.as_deref().unwrap_or_default(), &["HTTP", "HTTPS"]);
    for (index, header) in action.http_headers.iter().flatten().enumerate() {
        let path = path.child("httpHeaders").index(index).child("name");
        report.invalid_for_each(&path, &header.name, syntax::http_header_name(&header.name));
    }
}

fn port(port: &IntOrString, path: &Path, report: &mut ValidationErrors) {
    match port {
        IntOrString::Int(number) => port_number(*number, path, report),
        IntOrString::String(name) => report.invalid_for_each(path, name, syntax::port_name(name)),
    }
}

fn sleep(action: &SleepAction, grace_period: Option<i64>, path: &Path, report: &mut ValidationErrors) {
    if let Some(grace) = grace_period.filter(|grace| !(0..=*grace).contains(&action.seconds)) {
        let why = format!("must be between 0 and the terminationGracePeriodSeconds ({grace})");
        report.invalid(&path.child("seconds"), action.seconds, &why);
    }
}

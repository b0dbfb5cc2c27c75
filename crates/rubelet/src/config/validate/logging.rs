//! Logging, tracing and metrics settings.

use super::{FeatureGates, FieldErrors, KubeletConfiguration};
use crate::config::{GoDuration, OutputRouting};

/// The only release whose hidden metrics can be asked for: the one before ours.
const PREVIOUS_MINOR: &str = "1.35";

pub(super) fn check(config: &KubeletConfiguration, gates: &FeatureGates, faults: &mut FieldErrors) {
    logging(config, gates, faults);
    tracing(config, faults);
    let version = config.show_hidden_metrics_for_version.as_str();
    faults.require(version.is_empty() || version == PREVIOUS_MINOR, "showHiddenMetricsForVersion", || {
        format!("{version:?} must be {PREVIOUS_MINOR:?} or absent")
    });
}

fn logging(config: &KubeletConfiguration, gates: &FeatureGates, faults: &mut FieldErrors) {
    let logging = &config.logging;
    let flush = logging.flush_frequency;
    faults.require(flush > GoDuration::ZERO, "logging.flushFrequency", || {
        format!("{flush} must be greater than zero")
    });
    faults.one_of("logging.format", &logging.format, &["text", "json"]);
    faults.require(logging.format != "json" || gates.enabled("LoggingBetaOptions"), "logging.format", || {
        "\"json\" needs feature gate LoggingBetaOptions".to_owned()
    });
    let too_verbose = |level: u32| i32::try_from(level).is_err();
    let level = logging.verbosity;
    faults.require(!too_verbose(level), "logging.verbosity", || {
        format!("{level} must be at most {}", i32::MAX)
    });
    faults.require(logging.vmodule.is_empty() || logging.format == "text", "logging.vmodule", || {
        "works only with the text format".to_owned()
    });
    for (index, item) in logging.vmodule.iter().enumerate() {
        let field = format!("logging.vmodule[{index}]");
        let pattern = item.file_pattern.as_str();
        faults.require(!pattern.is_empty(), &field, || "filePattern must not be empty".to_owned());
        faults.require(!pattern.contains(['=', ',']), &field, || {
            format!("filePattern {pattern:?} has a '=' or a ','")
        });
        let level = item.verbosity;
        faults.require(!too_verbose(level), &field, || {
            format!("verbosity {level} must be at most {}", i32::MAX)
        });
    }
    routing("logging.options.text", &logging.options.text, gates, faults);
    routing("logging.options.json", &logging.options.json, gates, faults);
}

fn routing(field: &str, options: &OutputRouting, gates: &FeatureGates, faults: &mut FieldErrors) {
    const GATE: &str = "LoggingAlphaOptions";
    if gates.enabled(GATE) {
        return;
    }
    for (name, unset) in
        [("splitStream", !options.split_stream), ("infoBufferSize", options.info_buffer_size.is_zero())]
    {
        faults.require(unset, &format!("{field}.{name}"), || format!("needs feature gate {GATE}"));
    }
}

fn tracing(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    let Some(tracing) = &config.tracing else { return };
    if let Some(rate) = tracing.sampling_rate_per_million {
        let fine = (0..=1_000_000).contains(&rate);
        faults
            .require(fine, "tracing.samplingRatePerMillion", || format!("{rate} must be from 0 to 1000000"));
    }
    if let Some(endpoint) = &tracing.endpoint {
        // Without a scheme it is a DNS name; a scheme is what stands before the first colon.
        let scheme =
            if endpoint.contains("//") { endpoint.split(':').next().unwrap_or_default() } else { "dns" };
        let known = ["dns", "unix", "unix-abstract"];
        faults.require(known.contains(&scheme), "tracing.endpoint", || {
            format!("{endpoint:?} must be a host with port, or start with dns:, unix: or unix-abstract:")
        });
    }
}

//! The text of `--help`.

use std::fmt::Write;

use serde_json::Value;

use super::table::{Flag, Group, Target, flags};
use crate::commands::Command;
use crate::config::{KubeletConfiguration, Stage, Support, known_gates};

const INTRODUCTION: &str = "\
Rubelet runs the pods of one node: those that an API server has for it (--kubeconfig), and static pods of files
and of a URL. It takes the flags and the configuration files of the kubelet. Without --kubeconfig it runs static pods only.
";

pub fn help() -> String {
    let mut text = format!("{INTRODUCTION}\nUsage:\n  rubelet [flags]\n");
    for command in Command::ALL {
        let _ = writeln!(text, "  rubelet {:<12} {}", command.name(), command.summary());
    }
    let defaults = serde_json::to_value(KubeletConfiguration::without_file()).unwrap_or_default();
    for group in Group::ALL {
        let _ = writeln!(text, "\n{}:", group.title());
        let mut members: Vec<&Flag> = flags().filter(|flag| flag.group == group).collect();
        members.sort_by_key(|flag| flag.name);
        for flag in members {
            describe(&mut text, flag, &defaults);
        }
    }
    text.push_str("\nFeature gates (--feature-gates Name=true|false,...):\n");
    text.push_str("  AllAlpha, AllBeta: every gate of that stage that is not named itself\n");
    for gate in known_gates() {
        let stage = match gate.stage {
            Stage::Alpha => "alpha",
            Stage::Beta => "beta",
            Stage::Ga => "stable",
            Stage::Deprecated => "deprecated",
        };
        let locked = if gate.locked { ", fixed" } else { "" };
        let _ =
            writeln!(text, "  {} ({stage}, {}{locked})", gate.name, if gate.default { "on" } else { "off" });
    }
    text
}

fn describe(text: &mut String, flag: &Flag, defaults: &Value) {
    let short = flag.short().map(|letter| format!("-{letter}, ")).unwrap_or_default();
    let heading = format!("  {short}--{} {}", flag.name, flag.kind.placeholder());
    let _ = writeln!(text, "{}", heading.trim_end());
    let _ = write!(text, "        {}", flag.help);
    let default = default_text(flag, defaults);
    if !default.is_empty() {
        let _ = write!(text, " [{default}]");
    }
    match flag.target {
        Target::Field(field) if flag.deprecated => {
            let _ = write!(text, " (deprecated: {field} in the configuration file)");
        }
        _ if flag.deprecated => text.push_str(" (deprecated)"),
        _ => {}
    }
    match flag.support() {
        Support::Honoured => {}
        Support::Partly(what) => {
            let _ = write!(text, " (so far {what})");
        }
        Support::NoEffectYet => text.push_str(" (no effect yet)"),
    }
    text.push('\n');
}

fn default_text(flag: &Flag, defaults: &Value) -> String {
    let Target::Field(field) = flag.target else { return flag.default.to_owned() };
    match defaults.pointer(&format!("/{}", field.replace('.', "/"))) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        Some(Value::Object(_)) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_shows_every_flag_in_its_group() {
        let text = help();
        for flag in flags() {
            let heading = format!("--{} {}", flag.name, flag.kind.placeholder());
            assert!(text.lines().any(|line| line.ends_with(heading.trim_end())), "--{}", flag.name);
        }
        for group in Group::ALL {
            assert!(text.contains(&format!("\n{}:\n", group.title())), "{group:?}");
        }
        assert!(text.contains("rubelet why"));
        assert!(text.contains("  -v, --v level\n"));
        assert!(text.contains("[/var/lib/kubelet]"));
        assert!(text.contains("[10255]"));
        assert!(text.contains("NodeSwap (stable, on, fixed)"));
    }
}

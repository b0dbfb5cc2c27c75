//! The machine itself.

use ports::MachineUsage;

use crate::stats::family::{Family, Labels};

pub(in crate::stats) fn families(machine: &MachineUsage) -> Vec<Family> {
    let facts = &machine.facts;
    let labels = Labels::new(&[
        ("boot_id", &facts.boot_id),
        ("machine_id", &facts.machine_id),
        ("system_uuid", &facts.system_uuid),
    ]);
    let one = |(name, about, value): (&'static str, &'static str, u64)| {
        let mut family = Family::new(name, "gauge", about);
        family.add(labels.text(), Some(value as f64), None);
        family
    };
    let numbers = [
        ("machine_cpu_cores", "Logical CPUs.", facts.cores),
        ("machine_cpu_physical_cores", "Physical CPU cores.", facts.physical_cores),
        ("machine_cpu_sockets", "CPU sockets.", facts.sockets),
        ("machine_cpu_books", "CPU books (mainframes only).", facts.books),
        ("machine_cpu_drawers", "CPU drawers (mainframes only).", facts.drawers),
        ("machine_memory_bytes", "Memory of the machine in bytes.", machine.memory_capacity_bytes),
        ("machine_swap_bytes", "Swap of the machine in bytes.", machine.swap_capacity_bytes),
    ];
    let mut families: Vec<Family> = numbers.into_iter().map(one).collect();
    let mut version = Family::new(
        "cadvisor_version_info",
        "gauge",
        "Versions of the kernel and the operating system; the value is always 1.",
    );
    let of = Labels::new(&[
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", &facts.kernel),
        ("osVersion", &facts.os),
    ]);
    version.add(of.text(), Some(1.0), None);
    families.push(version);
    families
}

//! What pods ask for and may use: totals, quality of service, and the numbers the kernel is given for them;
//! what the node has for them.

mod amounts;
pub mod capacity;
mod cpu;
mod huge_pages;
mod oom;
mod qos;
mod totals;

pub use amounts::{Amounts, CPU, EPHEMERAL_STORAGE, HUGE_PAGES_PREFIX, MEMORY};
pub use capacity::node_allocatable;
pub use cpu::{MIN_SHARES, cpu_quota, cpu_shares, cpu_weight, quota_period_micros};
pub use huge_pages::{limits_by_page_size, page_size_name, page_size_of_resource};
pub use oom::{is_critical, oom_score_adj};
pub use qos::qos_class;
pub use totals::{
    LimitsDeclared, Overhead, container_limits, container_requests, has_pod_level_requests,
    has_pod_level_resources, limits_declared, pod_level_limits, pod_limits, pod_requests,
};

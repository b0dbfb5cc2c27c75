//! Scripts of events: what the node does over time.

mod admission;
mod attaching;
mod back_off;
mod certificates;
mod claims;
mod cluster;
mod contradictions;
mod converged;
mod debugging;
mod disk_limits;
mod ending;
mod eviction;
mod freshness;
mod image_garbage;
mod images;
mod node;
mod node_cgroups;
mod objects;
mod one_path;
mod oom_kills;
mod placing;
mod properties;
mod releasing;
mod script;
mod set_aside;
mod show;
mod shown_pods;
mod starting_over;
mod starts;
mod statuses;
mod unreadable;

use self::script::{check, check_on};

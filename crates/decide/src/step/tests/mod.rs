//! Scripts of events: what the node does over time.

mod back_off;
mod cluster;
mod converged;
mod ending;
mod freshness;
mod images;
mod node;
mod objects;
mod properties;
mod releasing;
mod script;
mod show;

use self::script::{check, check_on};

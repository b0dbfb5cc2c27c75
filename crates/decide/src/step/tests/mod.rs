//! Scripts of events: what the node does over time.

mod back_off;
mod ending;
mod freshness;
mod images;
mod releasing;
mod script;
mod show;

use self::script::{check, check_on};

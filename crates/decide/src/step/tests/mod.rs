//! Scripts of events: what the node does over time.

mod back_off;
mod images;
mod script;
mod show;

use self::script::{check, check_on};

//! Lists of resource amounts and the arithmetic on them.

use std::collections::BTreeMap;

use model::k8s;
use model::quantity::Quantity;

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub const HUGE_PAGES_PREFIX: &str = "hugepages-";

/// Amounts by resource name. A name that is present with zero differs from an absent one: the API keeps both apart.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Amounts(BTreeMap<String, Quantity>);

impl Amounts {
    /// Reads an API list. An amount that is no quantity is left out: sources refuse such pods before they get here.
    pub fn from_api(list: Option<&BTreeMap<String, k8s::Quantity>>) -> Self {
        let readable = |(name, text): (&String, &k8s::Quantity)| {
            Quantity::try_from(text).ok().map(|amount| (name.clone(), amount))
        };
        Self(list.into_iter().flatten().filter_map(readable).collect())
    }

    pub fn get(&self, name: &str) -> Option<Quantity> {
        self.0.get(name).copied()
    }

    /// Zero when absent.
    pub fn amount(&self, name: &str) -> Quantity {
        self.get(name).unwrap_or(Quantity::ZERO)
    }

    pub fn cpu_millis(&self) -> i64 {
        self.amount(CPU).milli_value()
    }

    pub fn memory_bytes(&self) -> i64 {
        self.amount(MEMORY).value()
    }

    pub fn set(&mut self, name: &str, amount: Quantity) {
        self.0.insert(name.to_owned(), amount);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, Quantity)> {
        self.0.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds each amount of `other` to this list.
    pub fn add(&mut self, other: &Amounts) {
        for (name, amount) in other.iter() {
            match self.0.get_mut(name) {
                Some(present) => *present += amount,
                None => self.set(name, amount),
            }
        }
    }

    /// Raises each amount to that of `other` where that one is greater.
    pub fn raise_to(&mut self, other: &Amounts) {
        for (name, amount) in other.iter() {
            if self.get(name).is_none_or(|present| amount > present) {
                self.set(name, amount);
            }
        }
    }

    pub fn plus(mut self, other: &Amounts) -> Amounts {
        self.add(other);
        self
    }
}

impl<'a> FromIterator<(&'a str, Quantity)> for Amounts {
    fn from_iter<I: IntoIterator<Item = (&'a str, Quantity)>>(amounts: I) -> Self {
        Self(amounts.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect())
    }
}

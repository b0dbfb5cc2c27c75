//! The syntax of label keys and label values, which node labels and taints share.

const NAME_LIMIT: usize = 63;
const PREFIX_LIMIT: usize = 253;

/// What is wrong with a key such as `example.com/name`, if anything.
pub fn qualified_name_error(key: &str) -> Option<String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if let Some(prefix) = prefix
        && !is_dns_subdomain(prefix)
    {
        return Some(format!("prefix {prefix:?} is not a lower-case DNS name"));
    }
    if name.is_empty() || name.len() > NAME_LIMIT || !is_label_text(name) {
        return Some(format!(
            "name {name:?} must be 1 to {NAME_LIMIT} letters, digits, '-', '_' or '.', with a letter or digit at both ends"
        ));
    }
    None
}

/// What is wrong with a label's value, if anything. The empty one is fine.
pub fn label_value_error(value: &str) -> Option<String> {
    let fine = value.is_empty() || value.len() <= NAME_LIMIT && is_label_text(value);
    (!fine).then(|| {
        format!(
            "value {value:?} must be at most {NAME_LIMIT} letters, digits, '-', '_' or '.', with a letter or digit at both ends"
        )
    })
}

fn is_label_text(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().next_back()];
    ends.into_iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn is_dns_subdomain(text: &str) -> bool {
    let is_label = |label: &str| {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let ends = [label.bytes().next(), label.bytes().next_back()];
        ends.into_iter().all(|end| end.is_some_and(allowed))
            && label.bytes().all(|byte| allowed(byte) || byte == b'-')
    };
    text.len() <= PREFIX_LIMIT && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_follow_the_label_syntax() {
        let long = "a".repeat(64);
        for good in ["a", "zone", "example.com/a_b.c-d", "A1", "node-role.kubernetes.io/worker"] {
            assert_eq!(qualified_name_error(good), None, "{good:?}");
        }
        for bad in ["", "/", "a/", "/a", "-a", "a-", "a b", "Example.com/a", "a/b/c", "ex..com/a", &long] {
            assert!(qualified_name_error(bad).is_some(), "{bad:?}");
        }
        for good in ["", "a", "A_b.c-1"] {
            assert_eq!(label_value_error(good), None, "{good:?}");
        }
        for bad in [".a", "a/b", "a ", &long] {
            assert!(label_value_error(bad).is_some(), "{bad:?}");
        }
    }
}

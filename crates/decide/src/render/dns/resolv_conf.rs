//! Reading a resolver file.

use model::cri::DnsConfig;

use super::set_option;
use crate::render::RenderError;

/// Nameservers accumulate, the last search line wins, options override by name. No path: no file was configured.
pub fn parse(path: &str, text: &str) -> Result<DnsConfig, RenderError> {
    let mut config = DnsConfig::default();
    if path.is_empty() {
        return Ok(config);
    }
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => {
                let server = words.next().ok_or_else(|| RenderError::ResolverConfig { path: path.into() })?;
                config.servers.push(server.to_owned());
            }
            // the same domain with and without a dot at its end must not count twice
            Some("search") => {
                let named = words.filter(|domain| *domain != ".");
                config.searches =
                    named.map(|domain| domain.strip_suffix('.').unwrap_or(domain).to_owned()).collect();
            }
            Some("options") => words.for_each(|option| set_option(&mut config.options, option.to_owned())),
            _ => {}
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files() {
        let check = |text: &str, servers: &[&str], searches: &[&str], options: &[&str]| {
            let strings = |list: &[&str]| list.iter().map(|item| item.to_string()).collect::<Vec<_>>();
            let expect = DnsConfig {
                servers: strings(servers),
                searches: strings(searches),
                options: strings(options),
            };
            assert_eq!(parse("/etc/resolv.conf", text), Ok(expect), "{text}");
        };
        check("", &[], &[], &[]);
        check("  \n# nameserver 1.1.1.1\n#x\n; y\ndomain a\nsortlist b\n", &[], &[], &[]);
        check(
            "nameserver 1.1.1.1\n nameserver\t2.2.2.2 # no\nnameserver ::1",
            &["1.1.1.1", "2.2.2.2", "::1"],
            &[],
            &[],
        );
        check("search a b\nsearch c. . d", &[], &["c", "d"], &[]);
        check("search a\nsearch", &[], &[], &[]);
        check("options ndots:1 debug\noptions ndots:2 rotate", &[], &[], &["ndots:2", "debug", "rotate"]);
        check("nameserver 1.1.1.1\r\nsearch a.\r\n", &["1.1.1.1"], &["a"], &[]);
    }

    #[test]
    fn a_nameserver_needs_an_address() {
        let error = parse("/x", "nameserver\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the resolver configuration \"/x\" has a nameserver line without an address"
        );
        assert_eq!(parse("", "nameserver\n"), Ok(DnsConfig::default()), "not configured, not read");
    }
}

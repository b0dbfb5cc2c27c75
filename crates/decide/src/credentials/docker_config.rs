//! Docker's configuration files: `config.json` and the older `.dockercfg`.

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use model::credentials::{DockerConfigFile, DockerConfigForm, Login, Logins};
use serde_json::{Map, Value};

/// Why a file is not used. Its text is never part of it: it holds secrets.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum DockerConfigError {
    #[error("not JSON (line {line}, column {column})")]
    Syntax { line: usize, column: usize },
    #[error("{field} is not an object")]
    NotAnObject { field: String },
    #[error("{field} is not a text")]
    NotText { field: String },
    #[error("the auth of {entry:?} is not base64 of username:password")]
    Auth { entry: String },
}

/// What the node's files say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeDockerConfig {
    pub logins: Logins,
    /// The file that they are from.
    pub from: Option<String>,
    /// Files that come before it, and what is wrong with each.
    pub problems: Vec<(String, DockerConfigError)>,
}

/// The first file that can be used. `files` are in the order in which they are looked for; those that come later
/// don't add to it.
pub fn node_logins(files: &[DockerConfigFile]) -> NodeDockerConfig {
    let mut found = NodeDockerConfig::default();
    for file in files {
        match parse(file.form, &file.content) {
            Ok(logins) => {
                return NodeDockerConfig { logins, from: Some(file.path.clone()), ..found };
            }
            Err(problem) => found.problems.push((file.path.clone(), problem)),
        }
    }
    found
}

pub fn parse(form: DockerConfigForm, content: &[u8]) -> Result<Logins, DockerConfigError> {
    let document: Value = serde_json::from_slice(content)
        .map_err(|error| DockerConfigError::Syntax { line: error.line(), column: error.column() })?;
    let whole = object(&document, "the file")?;
    match form {
        DockerConfigForm::Legacy => logins(whole),
        DockerConfigForm::Json => match field(whole, "auths") {
            None | Some(Value::Null) => Ok(Logins::new()),
            Some(auths) => logins(object(auths, "auths")?),
        },
    }
}

fn logins(entries: &Map<String, Value>) -> Result<Logins, DockerConfigError> {
    entries.iter().map(|(name, entry)| Ok((name.clone(), login(name, entry)?))).collect()
}

fn login(name: &str, entry: &Value) -> Result<Login, DockerConfigError> {
    if entry.is_null() {
        return Ok(Login::default());
    }
    let fields = object(entry, name)?;
    let text = |field_name: &str| match field(fields, field_name) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(DockerConfigError::NotText { field: format!("{name}.{field_name}") }),
    };
    let mut login = Login {
        username: text("username")?,
        password: text("password")?,
        email: text("email")?,
        identity_token: text("identitytoken")?,
    };
    let auth = text("auth")?;
    if !auth.is_empty() {
        let pair = decode_auth(&auth).ok_or_else(|| DockerConfigError::Auth { entry: name.to_owned() })?;
        (login.username, login.password) = pair;
    }
    Ok(login)
}

fn object<'a>(value: &'a Value, name: &str) -> Result<&'a Map<String, Value>, DockerConfigError> {
    value.as_object().ok_or_else(|| DockerConfigError::NotAnObject { field: name.to_owned() })
}

/// By its exact name, or else by one that differs only in case: what wrote the file may be of another mind.
fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields
        .get(name)
        .or_else(|| fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value))
}

/// With or without padding; lines may be broken.
fn decode_auth(auth: &str) -> Option<(String, String)> {
    const ENGINE: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true),
    );
    let one_line: String = auth.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let bytes = ENGINE.decode(one_line).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let (username, password) = text.split_once(':')?;
    Some((username.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn login(username: &str, password: &str) -> Login {
        Login { username: username.into(), password: password.into(), ..Login::default() }
    }

    fn check(entry: Value, expect: Result<Login, DockerConfigError>) {
        let text = json!({ "auths": { "h.test": entry } }).to_string();
        let parsed = parse(DockerConfigForm::Json, text.as_bytes());
        assert_eq!(parsed.map(|logins| logins["h.test"].clone()), expect, "{text}");
    }

    #[test]
    fn an_entry_gives_its_login_in_one_of_several_ways() {
        check(json!({"username": "u", "password": "p"}), Ok(login("u", "p")));
        // u:p with and without padding, and broken into lines
        check(json!({"auth": "dTpw"}), Ok(login("u", "p")));
        check(json!({"auth": "dTpwYQ=="}), Ok(login("u", "pa")));
        check(json!({"auth": "dTpwYQ"}), Ok(login("u", "pa")));
        check(json!({"auth": "dTpw\nYQ=="}), Ok(login("u", "pa")));
        check(json!({"auth": "dTpwOnE="}), Ok(login("u", "p:q")));
        check(json!({"Auth": "dTpw"}), Ok(login("u", "p")));
        // auth wins over the plain fields
        check(json!({"username": "x", "password": "y", "auth": "dTpw"}), Ok(login("u", "p")));
        check(json!({"auth": "", "username": "x"}), Ok(login("x", "")));
        let token = Login { identity_token: "t".into(), email: "e".into(), ..login("u", "") };
        check(json!({"username": "u", "identitytoken": "t", "email": "e"}), Ok(token));
        check(json!({}), Ok(Login::default()));
        check(json!(null), Ok(Login::default()));
    }

    #[test]
    fn an_entry_that_makes_no_sense_spoils_the_file() {
        let auth = || Err(DockerConfigError::Auth { entry: "h.test".into() });
        check(json!({"auth": "dXA="}), auth());
        check(json!({"auth": "!!"}), auth());
        let field = "h.test.username".to_owned();
        check(json!({"username": 1}), Err(DockerConfigError::NotText { field }));
        check(json!("u:p"), Err(DockerConfigError::NotAnObject { field: "h.test".into() }));
    }

    #[test]
    fn both_forms() {
        let entry = json!({"h.test": {"auth": "dTpw"}});
        let parsed = parse(DockerConfigForm::Legacy, entry.to_string().as_bytes()).unwrap();
        assert_eq!(parsed["h.test"], login("u", "p"));
        for empty in [json!({}), json!({"auths": null}), json!({"credsStore": "pass"})] {
            assert_eq!(parse(DockerConfigForm::Json, empty.to_string().as_bytes()), Ok(Logins::new()));
        }
        let headers = json!({"auths": {"h.test": {"auth": "dTpw"}}, "HttpHeaders": {"a": "b"}});
        assert_eq!(parse(DockerConfigForm::Json, headers.to_string().as_bytes()).unwrap().len(), 1);
    }

    #[test]
    fn errors_hold_no_secret() {
        let error = parse(DockerConfigForm::Json, b"{\"auths\": hidden").unwrap_err();
        assert_eq!(error, DockerConfigError::Syntax { line: 1, column: 11 });
        assert!(!error.to_string().contains("hidden"));
        let error = parse(DockerConfigForm::Json, b"[]").unwrap_err();
        assert_eq!(error.to_string(), "the file is not an object");
    }

    #[test]
    fn the_first_good_file_is_the_one() {
        let file = |path: &str, content: &str| DockerConfigFile {
            path: path.into(),
            form: DockerConfigForm::Json,
            content: content.into(),
        };
        let one = r#"{"auths": {"one": {}}}"#;
        let two = r#"{"auths": {"two": {}}}"#;
        let found = node_logins(&[file("/1", one), file("/2", two)]);
        assert_eq!((found.from.as_deref(), found.logins.contains_key("one")), (Some("/1"), true));
        assert_eq!(found.logins.len(), 1, "later files do not add to it");
        let found = node_logins(&[file("/1", "{"), file("/2", two)]);
        assert_eq!(found.from.as_deref(), Some("/2"));
        assert_eq!(found.problems[0].0, "/1");
        // An empty one is a good one.
        assert_eq!(node_logins(&[file("/1", "{}"), file("/2", two)]).from.as_deref(), Some("/1"));
        assert_eq!(node_logins(&[]), NodeDockerConfig::default());
    }
}

//! `Units`, implemented by calls to systemd over D-Bus.
//!
//! systemd answers a request with a queued job and sends a signal when the job has ended, so we subscribe to the
//! signals before the first request.

use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use ports::CgroupError;
use tokio::sync::Mutex;
use zbus::message::Type;
use zbus::{
    Connection, DynamicType, MatchRule, Message, MessageStream, OwnedObjectPath, Variant, connection,
};

use super::{Property, PropertyValue, SystemdUnits};

const SERVICE: &str = "org.freedesktop.systemd1";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

const CALL_DEADLINE: Duration = Duration::from_secs(25);
const JOB_DEADLINE: Duration = Duration::from_secs(30);

/// Connects when it is first needed, and again when the connection was lost.
///
/// Uses the message bus only: on its private socket systemd sends messages with a sender name that is not a valid
/// connection name, which zbus rightly rejects.
pub(in crate::cgroup) struct SystemdBus {
    /// Another bus than the system's.
    address: Option<String>,
    connection: Mutex<Option<Connection>>,
}

#[async_trait]
impl SystemdUnits for SystemdBus {
    async fn start_transient(&self, unit: &str, properties: &[Property]) -> Result<bool, CgroupError> {
        let call = Call { operation: "StartTransientUnit", unit };
        let auxiliary: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
        let body = (unit, "replace", variants(properties), auxiliary);
        match self.run_job(&call, &body).await {
            Ok(()) => Ok(true),
            Err(Failure::Named { name, .. }) if name.ends_with(".UnitExists") => Ok(false),
            Err(failure) => Err(call.error(failure)),
        }
    }

    async fn set_properties(&self, unit: &str, properties: &[Property]) -> Result<(), CgroupError> {
        let call = Call { operation: "SetUnitProperties", unit };
        // true: until the next boot only, as the unit itself.
        let body = (unit, true, variants(properties));
        let connection = self.connection().await.map_err(|failure| call.error(failure))?;
        request(&connection, call.operation, &body).await.map_err(|failure| call.error(failure))?;
        Ok(())
    }

    async fn stop(&self, unit: &str) -> Result<(), CgroupError> {
        let call = Call { operation: "StopUnit", unit };
        match self.run_job(&call, &(unit, "replace")).await {
            Ok(()) => {}
            Err(Failure::Named { name, .. }) if name.ends_with(".NoSuchUnit") => return Ok(()),
            Err(failure) => return Err(call.error(failure)),
        }
        // A failed unit would stay loaded and could not be started again under the same name.
        if let Ok(connection) = self.connection().await {
            let _ = request(&connection, "ResetFailedUnit", &(unit,)).await;
        }
        Ok(())
    }
}

impl SystemdBus {
    pub fn new() -> Self {
        Self { address: None, connection: Mutex::new(None) }
    }

    /// Connects to the systemd on the bus that listens at `socket`.
    #[cfg(test)]
    pub fn on(socket: &std::path::Path) -> Self {
        Self { address: Some(format!("unix:path={}", socket.display())), ..Self::new() }
    }

    async fn connection(&self) -> Result<Connection, Failure> {
        let mut held = self.connection.lock().await;
        if let Some(connection) = held.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let builder = match &self.address {
            Some(address) => connection::Builder::address(address.as_str()),
            None => connection::Builder::system(),
        };
        let connection = builder.build().await?;
        subscribe(&connection).await?;
        *held = Some(connection.clone());
        Ok(connection)
    }

    /// Sends a request that is answered with a job, and waits for the end of the job.
    async fn run_job<B>(&self, call: &Call<'_>, body: &B) -> Result<(), Failure>
    where
        B: serde::Serialize + DynamicType + Sync,
    {
        let connection = self.connection().await?;
        let rule = MatchRule::builder()
            .msg_type(Type::Signal)
            .path(MANAGER_PATH)
            .interface(MANAGER)
            .member("JobRemoved")
            .build()?;
        let mut removed = MessageStream::for_match_rule(rule, &connection, None).await?;
        let answer = request(&connection, call.operation, body).await?;
        let job: OwnedObjectPath = answer.body().deserialize()?;
        let end = job_end(&mut removed, &job);
        let result = tokio::time::timeout(JOB_DEADLINE, end).await.map_err(|_| Failure::Late)??;
        if result == "done" { Ok(()) } else { Err(Failure::Job(result)) }
    }
}

/// systemd sends its signals only to clients that subscribed.
async fn subscribe(connection: &Connection) -> Result<(), Failure> {
    match request(connection, "Subscribe", &()).await {
        Ok(_) => Ok(()),
        Err(Failure::Named { name, .. }) if name.ends_with(".AlreadySubscribed") => Ok(()),
        Err(failure) => Err(failure),
    }
}

async fn request<B>(connection: &Connection, method: &'static str, body: &B) -> Result<Message, Failure>
where
    B: serde::Serialize + DynamicType + Sync,
{
    // Without a bus there is no other peer.
    let destination = connection.is_bus().then_some(SERVICE);
    let call = connection.call_method(destination, MANAGER_PATH, Some(MANAGER), method, body);
    Ok(tokio::time::timeout(CALL_DEADLINE, call).await.map_err(|_| Failure::Late)??)
}

/// `JobRemoved(id, job, unit, result)`
async fn job_end(removed: &mut MessageStream, job: &OwnedObjectPath) -> Result<String, Failure> {
    while let Some(message) = removed.next().await {
        let body = message?.body();
        let (_, ended, _, result): (u32, OwnedObjectPath, String, String) = body.deserialize()?;
        if ended == *job {
            return Ok(result);
        }
    }
    Err(Failure::Lost)
}

fn variants(properties: &[Property]) -> Vec<(&'static str, Variant<'_>)> {
    properties.iter().map(|(name, value)| (*name, variant(value))).collect()
}

fn variant(value: &PropertyValue) -> Variant<'_> {
    match value {
        PropertyValue::Flag(flag) => Variant::from(*flag),
        PropertyValue::Number(number) => Variant::from(*number),
        PropertyValue::Text(text) => Variant::from(text.as_str()),
        PropertyValue::List(list) => Variant::from(list.clone()),
    }
}

struct Call<'a> {
    operation: &'static str,
    unit: &'a str,
}

impl Call<'_> {
    fn error(&self, failure: Failure) -> CgroupError {
        CgroupError::Systemd {
            operation: self.operation,
            unit: self.unit.to_owned(),
            message: failure.to_string(),
        }
    }
}

#[derive(thiserror::Error, Debug)]
enum Failure {
    #[error("{name}: {message}")]
    Named { name: String, message: String },
    #[error("the job ended as {0}")]
    Job(String),
    #[error("no answer in time")]
    Late,
    #[error("the connection was lost before the job ended")]
    Lost,
    #[error(transparent)]
    Bus(zbus::Error),
}

impl From<zbus::Error> for Failure {
    fn from(error: zbus::Error) -> Self {
        match error {
            zbus::Error::MethodError(name, message, _) => {
                Failure::Named { name: name.to_string(), message: message.unwrap_or_default() }
            }
            other => Failure::Bus(other),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the protocol, against a stand-in that speaks D-Bus over a socket pair. It knows the signatures of
    //! systemd's published interface and nothing else of systemd.

    use std::collections::BTreeMap;
    use std::os::unix::net::UnixStream;

    use zbus::{Guid, OwnedVariant};

    use super::*;

    const JOB: &str = "/org/freedesktop/systemd1/job/7";

    /// What was called, with its signature, unit and properties.
    #[derive(Debug, PartialEq)]
    struct Heard {
        method: String,
        signature: String,
        body: String,
    }

    /// Answers each call as `script` says for its method, until the peer disconnects; then returns the calls.
    async fn systemd(
        script: BTreeMap<&'static str, Answer>,
    ) -> (SystemdBus, tokio::task::JoinHandle<Vec<Heard>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = connection::Builder::unix_stream(theirs).server(Guid::generate()).p2p().build();
        let client = connection::Builder::unix_stream(ours).p2p().build();
        let (server, client) = tokio::join!(server, client);
        let server = server.unwrap();
        let mut calls = MessageStream::from(&server);
        let heard = tokio::spawn(async move {
            let mut heard = Vec::new();
            while let Some(Ok(call)) = calls.next().await {
                if call.message_type() == Type::MethodCall {
                    heard.push(answer(&server, &call, &script).await);
                }
            }
            heard
        });
        (SystemdBus { connection: Mutex::new(Some(client.unwrap())), ..SystemdBus::new() }, heard)
    }

    #[derive(Clone, Copy)]
    enum Answer {
        Nothing,
        /// A job that ends with this result, after another client's job has ended.
        Job(&'static str),
        Refuse(&'static str),
    }

    async fn answer(server: &Connection, call: &Message, script: &BTreeMap<&str, Answer>) -> Heard {
        let header = call.header();
        assert_eq!(header.path().unwrap().as_str(), MANAGER_PATH);
        assert_eq!(header.interface().unwrap().as_str(), MANAGER);
        let method = header.member().unwrap().to_string();
        match script[method.as_str()] {
            Answer::Nothing => server.reply(&header, &()).await.unwrap(),
            Answer::Refuse(name) => server.reply_error(&header, name, &"as told").await.unwrap(),
            Answer::Job(result) => {
                let job = OwnedObjectPath::try_from(JOB).unwrap();
                let other = OwnedObjectPath::try_from("/org/freedesktop/systemd1/job/6").unwrap();
                server.reply(&header, &job).await.unwrap();
                for body in [(6u32, other, "x.service", "failed"), (7u32, job, "x.slice", result)] {
                    let nobody = None::<&str>;
                    server.emit_signal(nobody, MANAGER_PATH, MANAGER, "JobRemoved", &body).await.unwrap();
                }
            }
        }
        let body = call.body();
        let signature = body.signature().to_string_no_parens();
        Heard { body: shown(&method, &body), method, signature }
    }

    fn shown(method: &str, body: &zbus::message::Body) -> String {
        type Properties = Vec<(String, OwnedVariant)>;
        match method {
            "StartTransientUnit" => {
                let (unit, mode, properties, extra): (String, String, Properties, Vec<(String, Properties)>) =
                    body.deserialize().unwrap();
                assert!(extra.is_empty());
                format!("{unit} {mode} {}", named(&properties))
            }
            "SetUnitProperties" => {
                let (unit, runtime, properties): (String, bool, Properties) = body.deserialize().unwrap();
                format!("{unit} {runtime} {}", named(&properties))
            }
            "StopUnit" => {
                let (unit, mode): (String, String) = body.deserialize().unwrap();
                format!("{unit} {mode}")
            }
            _ => body.deserialize::<String>().unwrap_or_default(),
        }
    }

    fn named(properties: &[(String, OwnedVariant)]) -> String {
        let one = |(name, value): &(String, OwnedVariant)| format!("{name}:{}", value.value_signature());
        properties.iter().map(one).collect::<Vec<_>>().join(",")
    }

    fn heard(method: &str, signature: &str, body: &str) -> Heard {
        Heard { method: method.into(), signature: signature.into(), body: body.into() }
    }

    fn properties() -> [Property; 4] {
        [
            ("Description", PropertyValue::Text("d".into())),
            ("Wants", PropertyValue::List(vec!["-.slice".into()])),
            ("MemoryAccounting", PropertyValue::Flag(true)),
            ("MemoryMax", PropertyValue::Number(1 << 20)),
        ]
    }

    #[tokio::test]
    async fn a_unit_is_started_and_its_job_awaited() {
        let (bus, told) = systemd([("StartTransientUnit", Answer::Job("done"))].into()).await;
        assert!(bus.start_transient("x.slice", &properties()).await.unwrap());
        drop(bus);
        let body = "x.slice replace Description:s,Wants:as,MemoryAccounting:b,MemoryMax:t";
        assert_eq!(told.await.unwrap(), [heard("StartTransientUnit", "ssa(sv)a(sa(sv))", body)]);
    }

    #[tokio::test]
    async fn a_unit_that_is_there_is_not_an_error() {
        let refuse = Answer::Refuse("org.freedesktop.systemd1.UnitExists");
        let (bus, _told) = systemd([("StartTransientUnit", refuse)].into()).await;
        assert!(!bus.start_transient("x.slice", &properties()).await.unwrap());
    }

    #[tokio::test]
    async fn what_went_wrong_is_told() {
        let (bus, _told) = systemd([("StartTransientUnit", Answer::Job("failed"))].into()).await;
        let error = bus.start_transient("x.slice", &[]).await.unwrap_err();
        assert_eq!(error.to_string(), "systemd: StartTransientUnit of x.slice: the job ended as failed");

        let refuse = Answer::Refuse("org.freedesktop.systemd1.Masked");
        let (bus, _told) = systemd([("SetUnitProperties", refuse)].into()).await;
        let error = bus.set_properties("x.slice", &[]).await.unwrap_err();
        let expect = "systemd: SetUnitProperties of x.slice: org.freedesktop.systemd1.Masked: as told";
        assert_eq!(error.to_string(), expect);
    }

    #[tokio::test]
    async fn properties_are_set_until_the_next_boot() {
        let (bus, told) = systemd([("SetUnitProperties", Answer::Nothing)].into()).await;
        bus.set_properties("x.slice", &[("TasksMax", PropertyValue::Number(3))]).await.unwrap();
        drop(bus);
        assert_eq!(told.await.unwrap(), [heard("SetUnitProperties", "sba(sv)", "x.slice true TasksMax:t")]);
    }

    #[tokio::test]
    async fn stopping_forgets_a_failed_unit() {
        let refuse = Answer::Refuse("org.freedesktop.systemd1.NoSuchUnit");
        let script = [("StopUnit", Answer::Job("done")), ("ResetFailedUnit", refuse)];
        let (bus, told) = systemd(script.into()).await;
        bus.stop("x.slice").await.unwrap();
        drop(bus);
        let expect = [heard("StopUnit", "ss", "x.slice replace"), heard("ResetFailedUnit", "s", "x.slice")];
        assert_eq!(told.await.unwrap(), expect);

        let (bus, _told) = systemd([("StopUnit", refuse)].into()).await;
        bus.stop("absent.slice").await.unwrap();
    }

    #[tokio::test]
    async fn a_lost_connection_ends_the_wait() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = connection::Builder::unix_stream(theirs).server(Guid::generate()).p2p().build();
        let client = connection::Builder::unix_stream(ours).p2p().build();
        let (server, client) = tokio::join!(server, client);
        let server = server.unwrap();
        let bus = SystemdBus { connection: Mutex::new(Some(client.unwrap())), ..SystemdBus::new() };
        let hang_up = async {
            let mut calls = MessageStream::from(&server);
            let call = calls.next().await.unwrap().unwrap();
            let job = OwnedObjectPath::try_from(JOB).unwrap();
            server.reply(&call.header(), &job).await.unwrap();
            drop(calls);
            server.clone().close().await.unwrap();
        };
        let (result, ()) = tokio::join!(bus.start_transient("x.slice", &[]), hang_up);
        assert!(matches!(result, Err(CgroupError::Systemd { .. })), "{result:?}");
    }
}

//! The client: two services, each at its socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ports::Tracing;
use tonic::transport::Channel;

use crate::call::CallTarget;
use crate::endpoint::{EndpointError, MAX_MESSAGE, Socket};
use crate::invalid_entries::InvalidEntryLog;
use crate::pb::image_service_client::ImageServiceClient;
use crate::pb::runtime_service_client::RuntimeServiceClient;
use crate::stream_refusal::StreamRefusal;

/// Calls a CRI runtime and its image service. Cheap to clone: clones share their connections.
#[derive(Clone, Debug)]
pub struct CriClient {
    pub(crate) runtime: RuntimeServiceClient<Channel>,
    pub(crate) images: ImageServiceClient<Channel>,
    pub(crate) runtime_socket: Arc<Path>,
    pub(crate) image_socket: Arc<Path>,
    pub(crate) request_timeout: Duration,
    pub(crate) invalid_entries: InvalidEntryLog,
    tracing: Tracing,
    list_streaming: bool,
    runtime_refusal: StreamRefusal,
    image_refusal: StreamRefusal,
}

impl CriClient {
    /// Names the sockets, and connects when the first call is made; a socket that is not there fails calls, not
    /// this. Without an endpoint of its own the image service is the runtime's. Needs a tokio runtime around it.
    pub fn connect(
        runtime_endpoint: &str,
        image_endpoint: Option<&str>,
        request_timeout: Duration,
    ) -> Result<Self, EndpointError> {
        let runtime_socket = Socket::parse(runtime_endpoint)?;
        let image_socket = match image_endpoint {
            Some(endpoint) => Socket::parse(endpoint)?,
            None => runtime_socket.clone(),
        };
        let (runtime_refusal, image_refusal) = (StreamRefusal::default(), StreamRefusal::default());
        let (runtime_channel, image_channel) = match image_socket == runtime_socket {
            true => {
                let shared = runtime_socket.channel(vec![runtime_refusal.clone(), image_refusal.clone()]);
                (shared.clone(), shared)
            }
            false => {
                let of_runtime = runtime_socket.channel(vec![runtime_refusal.clone()]);
                (of_runtime, image_socket.channel(vec![image_refusal.clone()]))
            }
        };
        Ok(Self {
            runtime: RuntimeServiceClient::new(runtime_channel).max_decoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::new(image_channel).max_decoding_message_size(MAX_MESSAGE),
            runtime_socket: PathBuf::from(runtime_socket.path()).into(),
            image_socket: PathBuf::from(image_socket.path()).into(),
            request_timeout,
            invalid_entries: InvalidEntryLog::default(),
            tracing: Tracing::default(),
            list_streaming: false,
            runtime_refusal,
            image_refusal,
        })
    }

    /// Puts each call under a span, and passes it on to the runtime.
    pub fn with_tracing(self, tracing: Tracing) -> Self {
        Self { tracing, ..self }
    }

    /// Asks for lists as streams, where the runtime has them.
    pub fn with_list_streaming(self, list_streaming: bool) -> Self {
        Self { list_streaming, ..self }
    }

    pub(crate) fn runtime_target(&self) -> CallTarget<'_> {
        let service = "runtime.v1.RuntimeService";
        let streams = self.streams(&self.runtime_refusal);
        CallTarget { socket: &self.runtime_socket, service, tracing: &self.tracing, streams }
    }

    pub(crate) fn image_target(&self) -> CallTarget<'_> {
        let (service, streams) = ("runtime.v1.ImageService", self.streams(&self.image_refusal));
        CallTarget { socket: &self.image_socket, service, tracing: &self.tracing, streams }
    }

    fn streams<'a>(&self, refusal: &'a StreamRefusal) -> Option<&'a StreamRefusal> {
        (self.list_streaming && !refusal.is_set()).then_some(refusal)
    }
}

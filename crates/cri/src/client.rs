//! The client: two services, each at its socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ports::Tracing;
use tonic::transport::Channel;

use crate::call::Line;
use crate::endpoint::{EndpointError, MAX_MESSAGE, Socket};
use crate::pb::image_service_client::ImageServiceClient;
use crate::pb::runtime_service_client::RuntimeServiceClient;

/// Calls a CRI runtime and its image service. Cheap to clone: clones share their connections.
#[derive(Clone, Debug)]
pub struct CriClient {
    pub(crate) runtime: RuntimeServiceClient<Channel>,
    pub(crate) images: ImageServiceClient<Channel>,
    pub(crate) runtime_socket: Arc<Path>,
    pub(crate) image_socket: Arc<Path>,
    pub(crate) request_timeout: Duration,
    tracing: Tracing,
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
        let runtime_channel = runtime_socket.channel();
        let image_channel = match image_socket == runtime_socket {
            true => runtime_channel.clone(),
            false => image_socket.channel(),
        };
        Ok(Self {
            runtime: RuntimeServiceClient::new(runtime_channel).max_decoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::new(image_channel).max_decoding_message_size(MAX_MESSAGE),
            runtime_socket: PathBuf::from(runtime_socket.path()).into(),
            image_socket: PathBuf::from(image_socket.path()).into(),
            request_timeout,
            tracing: Tracing::default(),
        })
    }

    /// Puts each call under a span, and passes it on to the runtime.
    pub fn with_tracing(self, tracing: Tracing) -> Self {
        Self { tracing, ..self }
    }

    pub(crate) fn runtime_line(&self) -> Line<'_> {
        let service = "runtime.v1.RuntimeService";
        Line { socket: &self.runtime_socket, service, tracing: &self.tracing }
    }

    pub(crate) fn image_line(&self) -> Line<'_> {
        Line { socket: &self.image_socket, service: "runtime.v1.ImageService", tracing: &self.tracing }
    }
}

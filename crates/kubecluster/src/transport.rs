//! Connections to a real API server: TLS, proxies, pools, and how a dead peer is noticed.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::Scheme;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connect, Connection, HttpConnector};
use hyper_util::client::legacy::{self, ResponseFuture};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::middleware::AuthLayer;
use kube::client::{Body, ConfigExt};
use rustls::crypto::{CryptoProvider, ring};
use tower::{BoxError, Service, ServiceBuilder};

use crate::connect::{ConnectError, Described};

/// TCP and TLS together; without it, a peer that accepts and then says nothing holds a socket for ever.
const CONNECT: Duration = Duration::from_secs(20);
/// A quiet connection is probed so often, so that a watch behind a dead address translator ends within a minute.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// So long may sent bytes stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// API servers and balancers close idle connections of a minute or more; we are the first to.
const IDLE: Duration = Duration::from_secs(45);
/// So many idle connections are kept for calls. There is no HTTP/2: a call under way has one to itself.
const KEPT: usize = 32;

/// Marks a request whose answer is a stream: it gets a connection of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams;

/// Makes ring the process' provider of cryptography, unless the program chose another one before.
pub(crate) fn use_ring() {
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread was faster, which is as good.
        let _ = ring::default_provider().install_default();
    }
}

/// All that a client needs, loaded; credential plugins have run.
pub(crate) struct Prepared {
    described: Described,
    proxy: Option<Intercept>,
    auth: Option<AuthLayer>,
    tls: Arc<Config>,
}

/// Loads what the connection needs. May block: a credential plugin is a process.
pub(crate) fn prepare(described: Described) -> Result<Prepared, ConnectError> {
    let config = &described.config;
    let proxy = proxy(&config.cluster_url, described.proxy.as_deref(), described.proxy_from_variables);
    let auth = config.auth_layer().map_err(ConnectError::of_kube)?;
    let mut tls = config.clone();
    if auth.is_some() {
        // The plugin gave a token; without this it would run again to be asked for a certificate.
        tls.auth_info.exec = None;
    }
    Ok(Prepared { proxy, auth, tls: Arc::new(tls), described })
}

/// The proxy on the way to `cluster`.
///
/// The kubeconfig's own word holds without exception. The variables hold unless `NO_PROXY` names the cluster's
/// host (kube compares it with the proxy's host).
fn proxy(cluster: &Uri, configured: Option<&str>, from_variables: bool) -> Option<Intercept> {
    match configured {
        Some(url) => Matcher::builder().all(url).build().intercept(cluster),
        None if from_variables => Matcher::from_env().intercept(cluster),
        None => None,
    }
}

impl Prepared {
    /// The API server's address.
    pub(crate) fn server(&self) -> String {
        self.described.config.cluster_url.to_string()
    }

    /// The context's name.
    pub(crate) fn name(&self) -> &str {
        &self.described.name
    }

    /// The client. Runs in a tokio runtime and ends with it.
    pub(crate) fn client(self) -> Result<kube::Client, ConnectError> {
        let Self { described, proxy, auth, tls } = self;
        let config = &described.config;
        let tcp = tcp();
        let client = match &proxy {
            None => client(config, &tls, auth, tcp),
            Some(proxy) => match proxy.uri().scheme_str() {
                Some("http") => {
                    let tunnel = Tunnel::new(proxy.uri().clone(), tcp);
                    let tunnel = match proxy.basic_auth() {
                        Some(header) => tunnel.with_auth(header.clone()),
                        None => tunnel,
                    };
                    client(config, &tls, auth, tunnel)
                }
                Some("socks5" | "socks5h") => {
                    let socks = SocksV5::new(proxy.uri().clone(), tcp);
                    let socks = match proxy.raw_auth() {
                        Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
                        None => socks,
                    };
                    client(config, &tls, auth, socks)
                }
                _ => return Err(ConnectError::Proxy(shown(proxy.uri()))),
            },
        };
        client.map_err(ConnectError::of_kube)
    }
}

/// Scheme and host of a proxy; its path or user could be a secret.
fn shown(proxy: &Uri) -> String {
    format!("{}://{}", proxy.scheme().map_or("", Scheme::as_str), proxy.host().unwrap_or_default())
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(Duration::from_secs(10)));
    tcp.set_keepalive_retries(Some(3));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    tcp
}

fn client<H>(config: &Config, tls: &Config, auth: Option<AuthLayer>, connector: H) -> Result<kube::Client, kube::Error>
where
    H: Service<Uri> + Clone + Send + Sync + 'static,
    H::Response: Connection + Read + Write + Send + Unpin + 'static,
    H::Future: Send + 'static,
    H::Error: Into<BoxError>,
{
    let mut connector = TimeoutConnector::new(tls.rustls_https_connector_with_connector(connector)?);
    // No limit on reading: a watch may be quiet for minutes.
    connector.set_connect_timeout(Some(CONNECT));
    let pool = |kept| {
        legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(kept)
            .build(connector.clone())
    };
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(auth)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(Pools { calls: pool(KEPT), streams: pool(0) });
    Ok(kube::Client::new(service, config.default_namespace.clone()))
}

/// A pool for calls, which come back, and one for streams, which stay away for minutes.
#[derive(Clone)]
struct Pools<C> {
    calls: legacy::Client<C, Body>,
    streams: legacy::Client<C, Body>,
}

impl<C> Service<Request<Body>> for Pools<C>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    type Response = Response<Incoming>;
    type Error = legacy::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let pool = if request.extensions().get::<Streams>().is_some() { &self.streams } else { &self.calls };
        pool.request(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_is_about_the_clusters_host() {
        let cluster = Uri::from_static("https://10.9.9.9:6443");
        let variables = |no: &str| Matcher::builder().https("http://10.1.1.1:3128").no(no).build();
        assert!(variables("10.9.9.9").intercept(&cluster).is_none());
        assert!(variables("10.0.0.0/8").intercept(&cluster).is_none());
        assert_eq!(
            variables("10.1.1.1").intercept(&cluster).map(|it| it.uri().to_string()),
            Some("http://10.1.1.1:3128/".to_owned())
        );
    }

    #[test]
    fn the_kubeconfigs_proxy_needs_no_variable_and_the_pod_has_none() {
        let cluster = Uri::from_static("https://10.9.9.9:6443");
        let configured = proxy(&cluster, Some("socks5://user:word@proxy:1080"), true).expect("a proxy");
        assert_eq!(configured.raw_auth(), Some(("user", "word")));
        assert_eq!(shown(configured.uri()), "socks5://proxy");
        assert!(proxy(&cluster, None, false).is_none());
    }
}

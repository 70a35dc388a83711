//! From a kubeconfig, or from inside a cluster, to a connection.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use kube::client::AuthError;
use kube::config::{Config, InClusterError, Kubeconfig, KubeconfigError};
use pando_cluster::Env;

use crate::limiter::Rate;
use crate::session::{Connect, Means, TokenFile};
use crate::transport;

/// How to reach a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The kubeconfig file. `None` uses the files that the variable `KUBECONFIG` lists, and without that the
    /// account of the pod this runs in. The file that `kubectl` uses by default is not looked for: what runs
    /// people's apps must not follow whatever cluster somebody last looked at.
    pub kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig; `None` is its current one.
    pub context: Option<String>,
    /// How many calls may be made.
    pub rate: Rate,
}

/// There is no way to reach a cluster; no call was made yet.
///
/// No text of it holds a credential.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing says which cluster is meant.
    #[error("no kubeconfig is given and this does not run inside a cluster")]
    NoKubeconfig,
    /// A file that is needed cannot be read.
    #[error("the {what} in {} cannot be read", path.display())]
    Unreadable {
        /// What the file holds.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A kubeconfig is no YAML, or has entries of a wrong type.
    #[error("the kubeconfig in {} is malformed{}", path.display(), place(*.line))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where, counted from 1, if that is known.
        line: Option<u64>,
    },
    /// A kubeconfig names no current context, and none was asked for.
    #[error("the kubeconfig has no current context; it knows {}", listed(.known))]
    NoContext {
        /// The contexts it has, ordered.
        known: Vec<String>,
    },
    /// The context asked for is not in the kubeconfig.
    #[error("the kubeconfig has no context {name:?}; it knows {}", listed(.known))]
    UnknownContext {
        /// The context asked for.
        name: String,
        /// The contexts it has, ordered.
        known: Vec<String>,
    },
    /// The kubeconfig's entries do not fit together, or a certificate or key in it cannot be used.
    #[error("the kubeconfig gives no usable connection")]
    Unusable(#[source] Box<kube::Error>),
    /// The account that a pod should find mounted is not there.
    #[error("the pod's service account gives no usable connection")]
    InCluster(#[source] Box<InClusterError>),
    /// The file holds no token.
    #[error("{} holds no token", path.display())]
    NoToken {
        /// The file.
        path: PathBuf,
    },
    /// The credentials cannot be had, e.g. because a credential plugin failed.
    #[error("no credentials: {0}")]
    NoCredentials(String),
    /// The proxy on the way is of a kind that is not supported.
    #[error("the proxy {0} is neither http:// nor socks5://")]
    Proxy(String),
}

fn place(line: Option<u64>) -> String {
    line.map_or_else(String::new, |line| format!(" at line {line}"))
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl ConnectError {
    /// What an operator should do.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NoKubeconfig => {
                "run inside the cluster, or set `kubeconfig` (or the variable KUBECONFIG) to a file for it".to_owned()
            }
            Self::Unreadable { path, .. } => {
                format!("check that {} exists and that this process may read it", path.display())
            }
            Self::Malformed { path, .. } => {
                format!("check {} with `kubectl config view --kubeconfig {0}`", path.display())
            }
            Self::NoContext { .. } | Self::UnknownContext { .. } => {
                "set `context` to one of the contexts that the kubeconfig has".to_owned()
            }
            Self::Unusable(_) => {
                "try the kubeconfig with `kubectl version`; its cluster, certificates or keys need a look".to_owned()
            }
            Self::InCluster(_) => {
                "give the pod a service account and let its token be mounted (`automountServiceAccountToken`)"
                    .to_owned()
            }
            Self::NoToken { path } => format!("write the token, alone on one line, to {}", path.display()),
            Self::NoCredentials(_) => {
                "run the credential plugin that the kubeconfig names by hand, or renew what it stands for".to_owned()
            }
            Self::Proxy(_) => "use an http:// or socks5:// proxy, or list the API server in NO_PROXY".to_owned(),
        }
    }

    /// What a failure of kube's credentials means. Their own texts may quote a plugin's output.
    pub(crate) fn of_auth(error: &AuthError) -> Self {
        Self::NoCredentials(match error {
            AuthError::AuthExecStart(error) => format!("the credential plugin cannot be started ({})", error.kind()),
            AuthError::AuthExecRun { out, .. } => format!("the credential plugin ended with {}", out.status),
            AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed | AuthError::MalformedTokenExpirationDate(_) => {
                "the credential plugin's answer cannot be read".to_owned()
            }
            AuthError::MissingCommand => "the kubeconfig names a credential plugin without a command".to_owned(),
            _ => "those in the kubeconfig cannot be used".to_owned(),
        })
    }

    pub(crate) fn of_kube(error: kube::Error) -> Self {
        match error {
            kube::Error::Auth(error) => Self::of_auth(&error),
            other => Self::Unusable(Box::new(other)),
        }
    }
}

/// What the process' surroundings say about clusters.
#[derive(Clone, Debug, Default)]
struct Surroundings {
    /// The files in `KUBECONFIG`.
    kubeconfigs: Vec<PathBuf>,
    /// Whether a kubelet started this process.
    in_cluster: bool,
}

impl Surroundings {
    fn of_process() -> Self {
        let kubeconfigs = std::env::var_os("KUBECONFIG").unwrap_or_default();
        let kubeconfigs = std::env::split_paths(&kubeconfigs).filter(|path| !path.as_os_str().is_empty()).collect();
        Self { kubeconfigs, in_cluster: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() }
    }
}

/// Where a connection's particulars come from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// These files; the earlier one wins.
    Files(Vec<PathBuf>),
    /// The pod's account.
    Pod,
}

fn source(options: &ConnectOptions, surroundings: Surroundings) -> Result<Source, ConnectError> {
    match (&options.kubeconfig, &options.context) {
        (Some(path), _) => Ok(Source::Files(vec![path.clone()])),
        (None, _) if !surroundings.kubeconfigs.is_empty() => Ok(Source::Files(surroundings.kubeconfigs)),
        (None, _) if !surroundings.in_cluster => Err(ConnectError::NoKubeconfig),
        (None, Some(name)) => Err(ConnectError::UnknownContext { name: name.clone(), known: Vec::new() }),
        (None, None) => Ok(Source::Pod),
    }
}

/// A connection as the files and variables of the moment describe it.
pub(crate) struct Described {
    pub(crate) config: Config,
    /// The context, or `in-cluster`.
    pub(crate) name: String,
    /// The proxy that the kubeconfig itself names for this cluster.
    pub(crate) proxy: Option<String>,
    /// Whether the variables that name a proxy count.
    pub(crate) proxy_from_variables: bool,
}

/// Describes the connection that `options` mean. Reads files; calls nothing.
pub(crate) fn describe(options: &ConnectOptions) -> Result<Described, ConnectError> {
    match source(options, Surroundings::of_process())? {
        Source::Files(paths) => from_files(&paths, options.context.as_deref()),
        Source::Pod => Ok(Described {
            config: Config::incluster().map_err(|error| ConnectError::InCluster(Box::new(error)))?,
            name: "in-cluster".to_owned(),
            proxy: None,
            proxy_from_variables: false,
        }),
    }
}

fn from_files(paths: &[PathBuf], context: Option<&str>) -> Result<Described, ConnectError> {
    let mut kubeconfig = read(paths)?;
    let mut known: Vec<_> = kubeconfig.contexts.iter().map(|context| context.name.clone()).collect();
    known.sort_unstable();
    let asked = context.map(str::to_owned).or(kubeconfig.current_context.take().filter(|name| !name.is_empty()));
    let Some(name) = asked else { return Err(ConnectError::NoContext { known }) };
    let Some(context) = kubeconfig.contexts.iter().find(|context| context.name == name) else {
        return Err(ConnectError::UnknownContext { name, known });
    };
    let cluster = context.context.as_ref().map(|context| context.cluster.clone()).unwrap_or_default();
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == cluster);
    let proxy = cluster.and_then(|named| named.cluster.as_ref()?.proxy_url.clone()).filter(|url| !url.is_empty());
    kubeconfig.current_context = Some(name.clone());
    let config =
        Config::try_from(kubeconfig).map_err(|error| ConnectError::of_kube(kube::Error::InferKubeconfig(error)))?;
    Ok(Described { config, name, proxy, proxy_from_variables: true })
}

/// The files as one, the earlier winning. In a list, as with `kubectl`, files may be missing, but not all of them.
fn read(paths: &[PathBuf]) -> Result<Kubeconfig, ConnectError> {
    let mut merged: Option<Kubeconfig> = None;
    let mut missing = None;
    for path in paths {
        match Kubeconfig::read_from(path) {
            Ok(next) => {
                let unusable = |error| ConnectError::of_kube(kube::Error::InferKubeconfig(error));
                merged = Some(merged.unwrap_or_default().merge(next).map_err(unusable)?);
            }
            Err(KubeconfigError::ReadConfig(source, path)) => {
                let error = ConnectError::Unreadable { what: "kubeconfig", path, source };
                let may_be_missing = matches!(&error, ConnectError::Unreadable { source, .. } if source.kind() == io::ErrorKind::NotFound);
                if !may_be_missing {
                    return Err(error);
                }
                missing.get_or_insert(error);
            }
            // The parser's own words quote the file.
            Err(KubeconfigError::Parse(error)) => {
                let line = error.location().map(|location| location.line());
                return Err(ConnectError::Malformed { path: path.clone(), line });
            }
            Err(other) => return Err(ConnectError::of_kube(kube::Error::InferKubeconfig(other))),
        }
    }
    match (merged, missing) {
        (Some(merged), _) => Ok(merged),
        (None, Some(missing)) => Err(missing),
        (None, None) => Err(ConnectError::NoKubeconfig),
    }
}

/// Connects as the options say, each time from what is on disk then.
pub(crate) struct FromOptions {
    pub(crate) options: ConnectOptions,
    pub(crate) env: Env,
}

impl fmt::Debug for FromOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.fmt(f)
    }
}

/// A connection, and what may be printed of it.
pub(crate) struct Connected {
    pub(crate) means: Means,
    pub(crate) server: String,
    pub(crate) context: String,
}

impl FromOptions {
    /// # Errors
    ///
    /// When files, credentials or keys do not give a connection. The API server is not asked.
    pub(crate) async fn open(&self) -> Result<Connected, ConnectError> {
        transport::use_ring();
        let (options, now) = (self.options.clone(), self.env.now());
        #[expect(
            clippy::disallowed_methods,
            reason = "a credential plugin is a process that may take seconds, and only a real cluster has one"
        )]
        let prepared = tokio::task::spawn_blocking(move || {
            let mut described = describe(&options)?;
            // Ours, since kube's does not trim. It wins over a token written beside it, as in Kubernetes' client.
            let auth = &mut described.config.auth_info;
            let token = auth.token_file.take().map(|path| TokenFile::open(path.into(), now)).transpose()?;
            if token.is_some() {
                auth.token = None;
            }
            Ok((transport::prepare(described)?, token))
        });
        let (prepared, token) = prepared.await.map_err(|error| ConnectError::NoCredentials(error.to_string()))??;
        let (server, context) = (prepared.server(), prepared.name().to_owned());
        let means = Means { client: prepared.client()?, token: token.map(Arc::new) };
        Ok(Connected { means, server, context })
    }
}

#[async_trait]
impl Connect for FromOptions {
    async fn connect(&self) -> Result<Option<Means>, ConnectError> {
        Ok(Some(self.open().await?.means))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn written(dir: &Path, name: &str, text: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, text).expect("written");
        path
    }

    fn kubeconfig(name: &str) -> String {
        format!(
            "clusters: [{{name: {name}, cluster: {{server: 'https://{name}.example:6443'}}}}]\n\
             contexts: [{{name: {name}, context: {{cluster: {name}, user: {name}}}}}]\nusers: [{{name: {name}, user: {{token: hunter2}}}}]\n"
        )
    }

    fn server(paths: &[PathBuf], context: Option<&str>) -> Result<String, ConnectError> {
        from_files(paths, context).map(|described| described.config.cluster_url.to_string())
    }

    #[test]
    fn what_is_asked_for_wins_over_the_surroundings() {
        let options = |kubeconfig: Option<&str>, context: Option<&str>| ConnectOptions {
            kubeconfig: kubeconfig.map(PathBuf::from),
            context: context.map(str::to_owned),
            ..ConnectOptions::default()
        };
        let surroundings = |files: &[&str], in_cluster| Surroundings {
            kubeconfigs: files.iter().map(PathBuf::from).collect(),
            in_cluster,
        };
        let files = |names: &[&str]| Source::Files(names.iter().map(PathBuf::from).collect());
        let rows = [
            (options(Some("x"), None), surroundings(&["a"], true), files(&["x"])),
            (options(None, Some("c")), surroundings(&["a", "b"], true), files(&["a", "b"])),
            (options(None, None), surroundings(&[], true), Source::Pod),
        ];
        for (options, surroundings, expected) in rows {
            assert_eq!(source(&options, surroundings).expect("a source"), expected, "{options:?}");
        }
        let nowhere = source(&options(None, None), surroundings(&[], false)).expect_err("nowhere");
        assert!(matches!(nowhere, ConnectError::NoKubeconfig));
        assert!(nowhere.remedy().contains("`kubeconfig`"), "{}", nowhere.remedy());
        let contextless = source(&options(None, Some("c")), surroundings(&[], true)).expect_err("a pod has no context");
        assert!(matches!(contextless, ConnectError::UnknownContext { .. }));
    }

    #[test]
    fn files_of_a_list_are_merged_and_some_may_be_missing() {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, two) = (written(dir.path(), "1", &kubeconfig("one")), written(dir.path(), "2", &kubeconfig("two")));
        let missing = dir.path().join("missing");
        let all = [missing.clone(), one, two];
        assert_eq!(server(&all, Some("two")).expect("two"), "https://two.example:6443/");
        assert_eq!(server(&all, Some("one")).expect("one"), "https://one.example:6443/");
        let error = server(&[missing], None).expect_err("nothing there");
        assert!(matches!(error, ConnectError::Unreadable { what: "kubeconfig", .. }), "{error}");
    }

    #[test]
    fn a_context_must_be_known_and_the_known_ones_are_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let both = [written(dir.path(), "2", &kubeconfig("two")), written(dir.path(), "1", &kubeconfig("one"))];
        let unknown = server(&both, Some("three")).expect_err("unknown");
        assert_eq!(unknown.to_string(), r#"the kubeconfig has no context "three"; it knows one, two"#);
        let none = server(&both, None).expect_err("no current one");
        assert_eq!(none.to_string(), "the kubeconfig has no current context; it knows one, two");
        let current = written(dir.path(), "3", "current-context: two\n");
        let [two, one] = both;
        assert_eq!(server(&[current, two, one], None).expect("two"), "https://two.example:6443/");
        let empty = written(dir.path(), "4", "");
        assert_eq!(
            server(&[empty], None).expect_err("empty").to_string(),
            "the kubeconfig has no current context; it knows none"
        );
    }

    #[test]
    fn a_malformed_kubeconfig_is_not_quoted() {
        let dir = tempfile::tempdir().expect("a directory");
        for text in [
            "clusters: []\nusers: [{name: u, user: {token: [hunter2]}}]\n",
            "clusters: []\nusers: hunter2\n",
            "clusters: [\nhunter2",
            "current-context: c\ncontexts: [{name: c, context: {cluster: k}}]\nclusters: [{name: k, cluster: {server: 'https://x', certificate-authority-data: 'hunter2!'}}]",
            "current-context: c\ncontexts: [{name: c, context: {cluster: k}}]\nclusters: []\nhunter: hunter2",
        ] {
            let error = server(&[written(dir.path(), "k", text)], None).expect_err(text);
            let mut printed = format!("{error:?}");
            let mut cause: Option<&dyn std::error::Error> = Some(&error);
            while let Some(error) = cause {
                printed = format!("{printed} {error}");
                cause = error.source();
            }
            assert!(!printed.contains("hunter2"), "{printed}");
            assert!(!error.remedy().is_empty());
        }
    }

    #[test]
    fn a_malformed_kubeconfig_is_told_with_its_line() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = written(dir.path(), "k", "clusters: []\nusers: word\n");
        let error = server(std::slice::from_ref(&path), None).expect_err("malformed");
        assert_eq!(error.to_string(), format!("the kubeconfig in {} is malformed at line 2", path.display()));
    }

    #[test]
    fn the_kubeconfigs_own_proxy_is_the_contexts_clusters() {
        let dir = tempfile::tempdir().expect("a directory");
        let text = "current-context: c\ncontexts: [{name: c, context: {cluster: k}}]\n\
            clusters: [{name: o, cluster: {server: 'https://o', proxy-url: 'http://other'}}, {name: k, cluster: {server: 'https://k', proxy-url: 'http://proxy:3128'}}]\n";
        let described = from_files(&[written(dir.path(), "k", text)], None).expect("described");
        assert_eq!(described.proxy.as_deref(), Some("http://proxy:3128"));
        assert!(described.proxy_from_variables);
    }
}

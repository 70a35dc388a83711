//! Who we are to the API server, and how that is renewed when the server does not believe it any more.
//!
//! Credentials rotate (S-6, BR-94): a token file is read again every minute, and an answer of 401 makes
//! everything be loaded anew, once for all calls that it hits, whatever the kind of credentials.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderValue;
use pando_cluster::Env;
use pando_cluster::env::Instant;

use crate::connect::ConnectError;

/// Makes the means to reach a cluster, each time from what the files and programs of the moment say.
#[async_trait]
pub(crate) trait Connect: fmt::Debug + Send + Sync {
    /// `None` where there is nothing that could be renewed.
    async fn connect(&self) -> Result<Option<Means>, ConnectError>;
}

/// The means to reach a cluster.
#[derive(Clone)]
pub(crate) struct Means {
    pub(crate) client: kube::Client,
    pub(crate) token: Option<Arc<TokenFile>>,
}

/// The means in use, and how often they were renewed.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) means: Means,
    generation: u64,
}

/// The one session that all calls share.
pub(crate) struct Sessions {
    env: Env,
    connect: Box<dyn Connect>,
    current: RwLock<Session>,
    /// When the credentials were last renewed or tried to be. Held while that goes on, so that calls which
    /// fail together wait for one renewal.
    renewed_at: tokio::sync::Mutex<Option<Instant>>,
}

impl Sessions {
    /// Renewing sooner would make credentials that are simply wrong cost a plugin's run with every call.
    const SPACING: Duration = Duration::from_secs(5);

    pub(crate) fn new(means: Means, connect: Box<dyn Connect>, env: Env) -> Self {
        let current = RwLock::new(Session { means, generation: 0 });
        Self { env, connect, current, renewed_at: tokio::sync::Mutex::default() }
    }

    pub(crate) fn current(&self) -> Session {
        // A session is replaced whole: a panic elsewhere cannot leave half of one.
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A session newer than `refused`, which the API server answered with 401.
    ///
    /// `None` when there is none to be had now: nothing can be renewed, or it was only just tried.
    pub(crate) async fn after(&self, refused: &Session) -> Result<Option<Session>, ConnectError> {
        let mut renewed_at = self.renewed_at.lock().await;
        let current = self.current();
        if current.generation > refused.generation {
            return Ok(Some(current));
        }
        let now = self.env.now();
        if renewed_at.is_some_and(|before| now.since(before) < Self::SPACING) {
            return Ok(None);
        }
        let means = self.connect.connect().await;
        // Only now: a caller that gives up meanwhile leaves the renewal to the next one.
        *renewed_at = Some(self.env.now());
        let Some(means) = means? else { return Ok(None) };
        let renewed = Session { means, generation: refused.generation + 1 };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = renewed.clone();
        tracing::info!(renewals = renewed.generation, "credentials loaded again after the API server refused them");
        Ok(Some(renewed))
    }
}

/// A bearer token in a file that somebody else keeps fresh, such as the kubelet.
///
/// kube's own one keeps the line break at the end of a file, which no header can hold, and reads the system's
/// clock.
pub(crate) struct TokenFile {
    path: PathBuf,
    read: Mutex<(HeaderValue, Instant)>,
}

impl TokenFile {
    /// A rotated token is in use so soon at the latest; the old one is good for minutes more.
    const REREAD: Duration = Duration::from_secs(50);

    pub(crate) fn open(path: PathBuf, now: Instant) -> Result<Self, ConnectError> {
        let header = read_header(&path)?;
        Ok(Self { path, read: Mutex::new((header, now)) })
    }

    /// The `Authorization` header of a call made at `now`.
    ///
    /// A file that cannot be read any more leaves the last token in use, as in Kubernetes' own client: some
    /// remove it after the start (<https://github.com/kubernetes/kubernetes/issues/68164>).
    pub(crate) fn authorization(&self, now: Instant) -> HeaderValue {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let (header, read_at) = &mut *read;
        if now.since(*read_at) >= Self::REREAD {
            *read_at = now;
            match read_header(&self.path) {
                Ok(new) => *header = new,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "token not read again, the last one is kept"
                    );
                }
            }
        }
        header.clone()
    }
}

fn read_header(path: &PathBuf) -> Result<HeaderValue, ConnectError> {
    let token = std::fs::read_to_string(path).map_err(|source| ConnectError::Unreadable {
        what: "token",
        path: path.clone(),
        source,
    })?;
    let token = token.trim();
    let header = HeaderValue::try_from(format!("Bearer {token}")).ok().filter(|_| !token.is_empty());
    let mut header = header.ok_or_else(|| ConnectError::NoToken { path: path.clone() })?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn second(seconds: u64) -> Instant {
        Instant::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_rotated_token_is_in_use_within_a_minute() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        fs::write(&path, "one\n").expect("written");
        let token = TokenFile::open(path.clone(), second(0)).expect("a token");
        fs::write(&path, "two").expect("written");
        assert_eq!(token.authorization(second(49)), "Bearer one", "a file is not read at every call");
        assert_eq!(token.authorization(second(50)), "Bearer two");
        fs::remove_file(&path).expect("removed");
        assert_eq!(token.authorization(second(200)), "Bearer two", "the last token is kept");
        fs::write(&path, "").expect("written");
        assert_eq!(token.authorization(second(400)), "Bearer two", "an empty file is no token");
    }

    #[test]
    fn a_token_never_prints() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        fs::write(&path, "hunter2").expect("written");
        let token = TokenFile::open(path.clone(), second(0)).expect("a token");
        assert_eq!(format!("{:?}", token.authorization(second(0))), "Sensitive");
        fs::write(&path, "hunter2\nhunter3").expect("written");
        let error = TokenFile::open(path, second(0)).err().expect("two lines are no token");
        assert!(!format!("{error:?} {error}").contains("hunter"), "{error:?}");
    }
}

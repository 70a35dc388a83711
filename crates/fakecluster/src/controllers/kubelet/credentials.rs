//! Which of a pod's credentials a registry is shown. Pure.
//!
//! <https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/credentialprovider/keyring.go>

use std::collections::BTreeMap;

use data_encoding::BASE64;
use serde_json::Value;

use crate::config::Login;

/// The name under which credentials for Docker's own registry are kept.
const HUB: &str = "index.docker.io";

/// The credentials in Secrets of type `kubernetes.io/dockerconfigjson`, by where each is for.
#[derive(Debug, Default)]
pub(super) struct Keyring(BTreeMap<String, Vec<Login>>);

impl Keyring {
    /// Adds what a Secret's `.dockerconfigjson` holds; what cannot be read there is passed over.
    pub(super) fn add(&mut self, config: &[u8]) {
        let config: Value = serde_json::from_slice(config).unwrap_or_default();
        for (place, entry) in config["auths"].as_object().into_iter().flatten() {
            if let Some(login) = login(entry) {
                self.0.entry(key(place)).or_default().push(login);
            }
        }
    }

    /// The credentials for an image, the one for the longest path first.
    pub(super) fn find(&self, image: &str) -> Vec<&Login> {
        let repository = repository(image);
        let (host, path) = repository.split_once('/').unwrap_or((&repository, ""));
        let fits = |key: &str| {
            let (wanted, prefix) = key.split_once('/').unwrap_or((key, ""));
            is_like(wanted, host) && path.starts_with(prefix)
        };
        let found: Vec<_> = self.0.iter().rev().filter(|(key, _)| fits(key)).flat_map(|(_, logins)| logins).collect();
        if found.is_empty() && host == "docker.io" {
            return self.0.get(HUB).into_iter().flatten().collect();
        }
        found
    }
}

fn login(entry: &Value) -> Option<Login> {
    let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let joined = BASE64.decode(text("auth").as_bytes()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let login = match joined.as_deref().and_then(|joined| joined.split_once(':')) {
        Some((username, password)) => Login::new(username, password),
        None => Login::new(&text("username"), &text("password")),
    };
    (!login.username.is_empty()).then_some(login)
}

/// The place without its scheme; the root of an API is the whole registry.
fn key(place: &str) -> String {
    let place = place.trim_start_matches("https://").trim_start_matches("http://");
    let (host, path) = place.split_once('/').unwrap_or((place, ""));
    let path = path.strip_prefix("v1/").or_else(|| path.strip_prefix("v2/")).unwrap_or(path);
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

/// The image's name in full, without tag and digest: `nginx` is `docker.io/library/nginx`.
fn repository(image: &str) -> String {
    let name = image.split('@').next().unwrap_or_default();
    let name = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(name, |(name, _)| name);
    match name.split_once('/') {
        None => format!("docker.io/library/{name}"),
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
    }
}

/// Whether a host is like a pattern: as many words, each equal or a `*`, and the same port.
fn is_like(pattern: &str, host: &str) -> bool {
    let split = |text: &str| {
        text.split_once(':').map_or((text.to_owned(), String::new()), |(host, port)| (host.to_owned(), port.to_owned()))
    };
    let ((pattern, pattern_port), (host, port)) = (split(pattern), split(host));
    let (wanted, given) = (pattern.split('.'), host.split('.'));
    pattern_port == port
        && wanted.clone().count() == given.clone().count()
        && wanted.zip(given).all(|(wanted, given)| wanted == "*" || wanted == given)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keyring(auths: &Value) -> Keyring {
        let mut keyring = Keyring::default();
        keyring.add(json!({"auths": auths}).to_string().as_bytes());
        keyring
    }

    /// Source: Kubernetes 1.34 with a registry that tells who asks, tried; the rows about Docker's own from its source.
    #[test]
    fn a_credential_is_for_its_registry_or_a_path_of_it() {
        let auth = json!({"auth": BASE64.encode(b"u:p:q")});
        for (place, image, fits) in [
            ("localhost:5055", "localhost:5055/private/x:1", true),
            ("https://localhost:5055/v1/", "localhost:5055/private/x:1", true),
            ("localhost:5055/private", "localhost:5055/private/x:1", true),
            ("localhost:5055/other", "localhost:5055/private/x:1", false),
            ("localhost", "localhost:5055/private/x:1", false),
            ("other.test", "registry.test/x:1", false),
            ("*.test", "registry.test/x:1", true),
            ("*.test", "a.registry.test/x:1", false),
            ("https://index.docker.io/v1/", "nginx", true),
            ("https://index.docker.io/v1/", "bitnami/nginx:1", true),
            ("docker.io", "nginx@sha256:00", true),
            ("https://index.docker.io/v1/", "registry.test/x", false),
        ] {
            let keyring = keyring(&json!({place: auth}));
            let found: Vec<_> = keyring.find(image).into_iter().cloned().collect();
            let expected = if fits { vec![Login::new("u", "p:q")] } else { vec![] };
            assert_eq!(found, expected, "{place} for {image}");
        }
    }

    #[test]
    fn a_name_and_a_password_do_as_well_and_the_nearest_path_is_first() {
        let keyring = keyring(&json!({
            "registry.test": {"username": "all", "password": "1"},
            "registry.test/team": {"username": "team", "password": "2"},
            "broken.test": {"auth": "***"},
        }));
        let names = |image: &str| keyring.find(image).iter().map(|login| login.username.clone()).collect::<Vec<_>>();
        assert_eq!(names("registry.test/team/x:1"), ["team", "all"]);
        assert_eq!(names("broken.test/x:1"), Vec::<String>::new());
    }
}

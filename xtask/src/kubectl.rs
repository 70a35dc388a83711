//! kubectl on one cluster, the kubeconfigs made with it, and the manifests of this repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{shell, tools};

/// The namespace and the name of Pando's service account.
pub(crate) const ACCOUNT: (&str, &str) = ("pando", "pando");

/// The manifests an operator applies.
const MANIFESTS: &str = "deploy/kubernetes";

/// kubectl with a kubeconfig of its own, so that nothing we do follows another window's `use-context`.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// kubectl from `PATH` with this kubeconfig.
    pub(crate) fn with(kubeconfig: PathBuf) -> Result<Self> {
        Ok(Self { program: tools::KUBECTL.find()?, kubeconfig })
    }

    /// kubectl on the cluster that a person's own kubeconfig names, kept in `copy` from now on.
    pub(crate) fn of_person(kubeconfig: Option<&Path>, context: Option<&str>, copy: PathBuf) -> Result<Self> {
        let mut view = Command::new(tools::KUBECTL.find()?);
        view.args(["config", "view", "--raw", "--minify", "--flatten"]);
        if let Some(context) = context {
            view.args(["--context", context]);
        }
        if let Some(path) = kubeconfig {
            view.env("KUBECONFIG", path);
        }
        let text = shell::read(&mut view).context("could not read the kubeconfig")?;
        shell::write_private(&copy, &text)?;
        Self::with(copy)
    }

    /// The kubeconfig in use.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A call of kubectl.
    pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(shell::root()).arg("--kubeconfig").arg(&self.kubeconfig).args(arguments);
        command
    }

    /// What `get` answers as JSON.
    pub(crate) fn get(&self, arguments: &[&str]) -> Result<Value> {
        let printed = shell::read(&mut self.command([&["get", "-o", "json"], arguments].concat()))?;
        serde_json::from_str(&printed).context("kubectl printed no JSON")
    }

    /// The names in a list that `get` answers.
    pub(crate) fn names(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let list = self.get(arguments)?;
        let names = list["items"].as_array().into_iter().flatten().filter_map(|item| item["metadata"]["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// Whether any object of the manifests is there already.
    pub(crate) fn has_manifests(&self) -> Result<bool> {
        let found = shell::read(&mut self.command(["get", "-k", MANIFESTS, "--ignore-not-found", "-o", "name"]))?;
        Ok(!found.trim().is_empty())
    }

    /// Applies the manifests.
    pub(crate) fn apply_manifests(&self) -> Result<()> {
        shell::run(&mut self.command(["apply", "-k", MANIFESTS]))
    }

    /// Removes every object of the manifests and waits until it is gone.
    pub(crate) fn delete_manifests(&self) -> Result<()> {
        shell::finish(&mut self.command(["delete", "-k", MANIFESTS, "--ignore-not-found", "--timeout", "180s"]))
    }

    /// Writes a kubeconfig of Pando's service account, good for `hours`, to `path`.
    pub(crate) fn account(&self, hours: u32, path: PathBuf) -> Result<Self> {
        let (namespace, name) = ACCOUNT;
        let duration = format!("--duration={hours}h");
        let token = shell::read(&mut self.command(["create", "token", name, "-n", namespace, &duration]))?;
        let printed =
            shell::read(&mut self.command(["config", "view", "--raw", "--minify", "--flatten", "-o", "json"]))?;
        let view: Value = serde_json::from_str(&printed).context("kubectl printed no JSON")?;
        let config = account_config(&view, token.trim()).context("the kubeconfig names no cluster")?;
        shell::write_private(&path, &config.to_string())?;
        Ok(Self { program: self.program.clone(), kubeconfig: path })
    }
}

/// The kubeconfig `admin` with one user, who has nothing but `token`.
fn account_config(admin: &Value, token: &str) -> Option<Value> {
    let cluster = admin["clusters"].as_array()?.first()?;
    Some(json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": ACCOUNT.1, "user": {"token": token}}],
        "contexts": [{"name": ACCOUNT.1, "context": {"cluster": cluster["name"], "user": ACCOUNT.1}}],
        "current-context": ACCOUNT.1,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accounts_kubeconfig_holds_nothing_of_the_admins_credentials() {
        let admin = json!({
            "clusters": [{"name": "c", "cluster": {"server": "https://a:1", "certificate-authority-data": "Y2E="}}],
            "users": [{"name": "admin", "user": {"client-key-data": "ADMIN-KEY", "token": "ADMIN-TOKEN"}}],
            "contexts": [{"name": "admin@c", "context": {"cluster": "c", "user": "admin"}}],
            "current-context": "admin@c",
        });
        let config = account_config(&admin, "OURS").expect("it names a cluster");
        assert_eq!(config["users"], json!([{"name": "pando", "user": {"token": "OURS"}}]));
        assert_eq!(config["clusters"], admin["clusters"]);
        assert!(!config.to_string().contains("ADMIN"), "{config}");
    }

    #[test]
    fn a_kubeconfig_without_a_cluster_gives_none() {
        assert_eq!(account_config(&json!({"clusters": []}), "t"), None);
    }
}

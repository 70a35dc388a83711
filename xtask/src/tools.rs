//! Finds the programs that a task needs; one that is missing is named together with its remedy.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};

use crate::shell;

/// The release of cargo-deny that is installed where none is found.
const CARGO_DENY: &str = "0.20.2";

/// A program that is expected on `PATH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    /// Its name.
    pub(crate) name: &'static str,
    /// What to do where it is missing.
    pub(crate) remedy: &'static str,
}

/// Kubernetes in containers.
pub(crate) const KIND: Tool = Tool {
    name: "kind",
    remedy: "install it from https://kind.sigs.k8s.io, or run on a cluster you have: `--cluster current --kubeconfig FILE`",
};
/// k3s in containers.
pub(crate) const K3D: Tool = Tool {
    name: "k3d",
    remedy: "install it from https://k3d.io, or take another cluster: `--cluster kind`, `--cluster current --kubeconfig FILE`",
};
/// The command line of Kubernetes.
pub(crate) const KUBECTL: Tool = Tool {
    name: "kubectl",
    remedy: "install it from https://kubernetes.io/docs/tasks/tools/, within one minor version of the cluster",
};

impl Tool {
    /// Where the program is.
    pub(crate) fn find(self) -> Result<PathBuf> {
        on_path(self.name).ok_or_else(|| anyhow!("`{}` is not on PATH: {}", self.name, self.remedy))
    }
}

/// cargo-deny: from `PATH`, else from the sibling folder `shared/tools`, else built once under `target/tools`.
pub(crate) fn cargo_deny() -> Result<PathBuf> {
    let root = shell::root();
    let built = root.join("target/tools");
    let near = [root.join("../shared/tools/cargo-deny"), built.join("bin/cargo-deny")];
    if let Some(found) = on_path("cargo-deny").or_else(|| near.into_iter().find(|path| is_program(path))) {
        return Ok(found);
    }
    let package = format!("cargo-deny@{CARGO_DENY}");
    println!("cargo-deny is not here: installing {package} under {}", built.display());
    shell::run(shell::cargo().args(["install", "--locked", "--quiet", &package, "--root"]).arg(&built)).map_err(
        |error| {
            error.context(format!(
                "cargo-deny is needed and could not be installed; put it on PATH (`cargo install --locked {package}`)"
            ))
        },
    )?;
    Ok(built.join("bin/cargo-deny"))
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|candidate| is_program(candidate))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_comes_with_its_remedy() {
        let tool = Tool { name: "no-such-program-here", remedy: "make one" };
        let error = tool.find().expect_err("there is none").to_string();
        assert_eq!(error, "`no-such-program-here` is not on PATH: make one");
    }

    #[test]
    fn a_file_that_cannot_run_is_no_program() {
        assert!(!is_program(&shell::root().join("Cargo.toml")));
        assert!(is_program(Path::new("/bin/sh")));
    }
}

//! Reads what `cargo metadata` says about this workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::rules::Graph;
use crate::shell;

/// The packages of this workspace, and who uses whom.
#[derive(Debug)]
pub(crate) struct Metadata {
    packages: Vec<Package>,
    graph: Graph,
}

/// One package of this workspace.
#[derive(Debug)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Where it lives.
    pub(crate) folder: PathBuf,
    /// What it says it depends on.
    pub(crate) dependencies: Vec<Dependency>,
    /// Dependencies it has for their features alone (`package.metadata.cargo-machete.ignored`).
    pub(crate) only_for_features: BTreeSet<String>,
}

/// One line of a package's dependencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    /// The package depended on.
    pub(crate) package: String,
    /// What the code calls it.
    pub(crate) ident: String,
    /// Whether only tests, examples and benches get it.
    pub(crate) only_for_tests: bool,
}

impl Metadata {
    /// Asks cargo.
    pub(crate) fn of_workspace() -> Result<Self> {
        let printed = shell::read(shell::cargo().args(["metadata", "--format-version", "1", "--locked"]))?;
        let json = serde_json::from_str(&printed).context("cargo metadata is not JSON")?;
        Self::read(&json).context("cargo metadata is not as expected")
    }

    /// The packages of this workspace, by name.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter()
    }

    /// What products are built from.
    pub(crate) fn graph(&self) -> Graph {
        self.graph.clone()
    }

    fn read(json: &Value) -> Option<Self> {
        let members = json["workspace_members"].as_array()?;
        let mut names = BTreeMap::new();
        let mut packages = Vec::new();
        for package in json["packages"].as_array()? {
            names.insert(package["id"].as_str()?, package["name"].as_str()?);
            if members.contains(&package["id"]) {
                packages.push(Package::read(package)?);
            }
        }
        packages.sort_by(|one, other| one.name.cmp(&other.name));
        let mut graph = Graph::default();
        graph.members.extend(packages.iter().map(|package| package.name.clone()));
        for node in json["resolve"]["nodes"].as_array()? {
            let from = names.get(node["id"].as_str()?)?;
            let uses = graph.uses.entry((*from).to_owned()).or_default();
            for dependency in node["deps"].as_array()? {
                // A normal dependency has no kind; "dev" and "build" reach no product.
                if dependency["dep_kinds"].as_array()?.iter().any(|kind| kind["kind"].is_null()) {
                    uses.insert((*names.get(dependency["pkg"].as_str()?)?).to_owned());
                }
            }
        }
        Some(Self { packages, graph })
    }
}

impl Package {
    fn read(json: &Value) -> Option<Self> {
        let manifest = Path::new(json["manifest_path"].as_str()?);
        let ignored = json["metadata"]["cargo-machete"]["ignored"].as_array();
        Some(Self {
            name: json["name"].as_str()?.to_owned(),
            folder: manifest.parent()?.to_owned(),
            dependencies: json["dependencies"].as_array()?.iter().map(Dependency::read).collect::<Option<_>>()?,
            only_for_features: ignored.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
        })
    }
}

impl Dependency {
    fn read(json: &Value) -> Option<Self> {
        let package = json["name"].as_str()?;
        Some(Self {
            package: package.to_owned(),
            ident: json["rename"].as_str().unwrap_or(package).replace('-', "_"),
            only_for_tests: json["kind"] == "dev",
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_normal_dependencies_count_for_products() {
        let json = json!({
            "workspace_members": ["id-a"],
            "packages": [
                {"id": "id-a", "name": "a", "manifest_path": "/w/a/Cargo.toml", "metadata": null, "dependencies": [
                    {"name": "b-b", "rename": null, "kind": null},
                    {"name": "c", "rename": "sea", "kind": "dev"},
                ]},
                {"id": "id-b", "name": "b-b", "manifest_path": "/w/b/Cargo.toml", "metadata": null, "dependencies": []},
                {"id": "id-c", "name": "c", "manifest_path": "/w/c/Cargo.toml", "metadata": null, "dependencies": []},
            ],
            "resolve": {"nodes": [
                {"id": "id-a", "deps": [
                    {"pkg": "id-b", "dep_kinds": [{"kind": null}]},
                    {"pkg": "id-c", "dep_kinds": [{"kind": "dev"}]},
                ]},
            ]},
        });
        let metadata = Metadata::read(&json).expect("it has every field that is read");
        assert_eq!(metadata.graph().uses["a"], BTreeSet::from(["b-b".to_owned()]));
        let package = metadata.members().next().expect("a is a member");
        assert_eq!((package.name.as_str(), package.folder.as_path()), ("a", Path::new("/w/a")));
        let idents: Vec<_> = package.dependencies.iter().map(|it| (it.ident.as_str(), it.only_for_tests)).collect();
        assert_eq!(idents, [("b_b", false), ("sea", true)]);
    }

    #[test]
    fn this_workspace_can_be_read() {
        let metadata = Metadata::of_workspace().expect("cargo metadata answers");
        assert!(metadata.graph().members.contains("pando-cluster"));
        assert!(metadata.graph().uses["pando-cluster"].contains("k8s-openapi"));
    }
}

//! Finds dependencies that nothing names: each is compiled, trusted and licensed for nothing.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::metadata::{Dependency, Package};

/// A dependency in the wrong place, or in none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Nothing names it.
    Unused { package: String, dependency: String },
    /// Only tests name it, and products are built from it.
    OnlyTests { package: String, dependency: String },
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unused { package, dependency } => write!(
                f,
                "{package} does not use {dependency}: remove it, or list it under package.metadata.cargo-machete.ignored with the reason"
            ),
            Self::OnlyTests { package, dependency } => {
                write!(f, "{package} uses {dependency} in tests only: it belongs under dev-dependencies")
            }
        }
    }
}

/// The dependencies of `package` that its sources do not name.
pub(crate) fn find(package: &Package) -> Result<Vec<Idle>> {
    let product = sources(&[package.folder.join("src"), package.folder.join("build.rs")])?;
    let tests = sources(&["tests", "benches", "examples"].map(|folder| package.folder.join(folder)))?;
    Ok(judge(package, &product, &tests))
}

fn judge(package: &Package, product: &str, tests: &str) -> Vec<Idle> {
    let idle = |dependency: &Dependency| {
        let (package, name) = (package.name.clone(), dependency.package.clone());
        if names(product, &dependency.ident) {
            return None;
        }
        match (names(tests, &dependency.ident), dependency.only_for_tests) {
            (true, true) => None,
            (true, false) => Some(Idle::OnlyTests { package, dependency: name }),
            (false, _) => Some(Idle::Unused { package, dependency: name }),
        }
    };
    let listed = |dependency: &&Dependency| !package.only_for_features.contains(&dependency.package);
    package.dependencies.iter().filter(listed).filter_map(idle).collect()
}

/// Whether code, comments aside, names `ident` as a whole word.
fn names(code: &str, ident: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(ident).any(|(at, _)| !code[..at].ends_with(word) && !code[at + ident.len()..].starts_with(word))
}

/// All Rust code in these files and folders, without its line comments; what is not there is empty.
fn sources<P: AsRef<Path>>(roots: &[P]) -> Result<String> {
    let mut code = String::new();
    for root in roots {
        gather(root.as_ref(), &mut code)?;
    }
    Ok(code)
}

fn gather(path: &Path, code: &mut String) -> Result<()> {
    let failed = || format!("could not read {}", path.display());
    if path.is_dir() {
        for entry in fs::read_dir(path).with_context(failed)? {
            gather(&entry.with_context(failed)?.path(), code)?;
        }
    } else if path.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
        let text = fs::read_to_string(path).with_context(failed)?;
        // Documentation may speak of a crate that the code does not use; doc tests are rare enough to be listed.
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            code.push_str(line);
            code.push('\n');
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn package(dependencies: &[(&str, bool)]) -> Package {
        let dependency = |(name, only_for_tests): &(&str, bool)| Dependency {
            package: (*name).to_owned(),
            ident: name.replace('-', "_"),
            only_for_tests: *only_for_tests,
        };
        Package {
            name: "house".to_owned(),
            folder: "/nowhere".into(),
            dependencies: dependencies.iter().map(dependency).collect(),
            only_for_features: BTreeSet::new(),
        }
    }

    #[test]
    fn a_dependency_is_used_where_its_name_stands_as_a_word() {
        let rows = [
            ("use serde_json::json;", "serde_json", true),
            ("#[serde(default)]", "serde", true),
            ("use serde_json::json;", "serde", false),
            ("let my_serde = 1;", "serde", false),
            ("", "serde", false),
        ];
        for (code, ident, expected) in rows {
            assert_eq!(names(code, ident), expected, "{ident} in {code:?}");
        }
    }

    #[test]
    fn what_nothing_names_and_what_only_tests_name_are_told_apart() {
        let package = package(&[
            ("in-product", false),
            ("in-tests", false),
            ("nowhere", false),
            ("dev", true),
            ("dev-idle", true),
        ]);
        let found = judge(&package, "use in_product::x;", "use in_tests::x; use dev::y;");
        let named = |name: &str| name.to_owned();
        assert_eq!(
            found,
            [
                Idle::OnlyTests { package: named("house"), dependency: named("in-tests") },
                Idle::Unused { package: named("house"), dependency: named("nowhere") },
                Idle::Unused { package: named("house"), dependency: named("dev-idle") },
            ]
        );
    }

    #[test]
    fn one_kept_for_its_features_is_left_alone() {
        let mut package = package(&[("getrandom", false)]);
        package.only_for_features.insert("getrandom".to_owned());
        assert_eq!(judge(&package, "", ""), []);
    }
}

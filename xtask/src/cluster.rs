//! The cluster a task works on: one that is there, or one made for it and removed afterwards.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::kubectl::Kubectl;
use crate::{shell, tools};

/// The name of a cluster made here.
const NAME: &str = "pando-e2e";

/// Where the audit log is, on the node that runs the API server.
const AUDIT_LOG: &str = "/var/log/kubernetes/audit.log";

/// Which cluster, and what becomes of it.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// Where to run: a cluster made by kind or k3d, or the one a kubeconfig names.
    /// Without it: `current` where `--kubeconfig` or KUBECONFIG is given, else `kind`.
    #[arg(long, value_enum)]
    cluster: Option<Provider>,
    /// The kubeconfig of the cluster to use.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// The context in it.
    #[arg(long)]
    context: Option<String>,
    /// The node image of a cluster made here.
    #[arg(long, env = "KIND_NODE_IMAGE")]
    image: Option<String>,
    /// How many nodes a cluster made here has.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Leaves everything as it is at the end, to look at.
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Where a cluster comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Provider {
    /// Made by kind, removed at the end.
    Kind,
    /// Made by k3d, removed at the end.
    K3d,
    /// The one the kubeconfig names; only what was made in it is removed.
    Current,
}

/// A cluster to work on, as its administrator.
#[derive(Debug)]
pub(crate) struct Cluster {
    provider: Provider,
    keep: bool,
    kubectl: Kubectl,
    folder: PathBuf,
    /// Whether the manifests are ours to remove.
    installed: bool,
}

impl Cluster {
    /// Makes the cluster or finds it. `folder` is where its kubeconfigs go.
    pub(crate) fn obtain(args: &ClusterArgs, folder: PathBuf) -> Result<Self> {
        let provider = args.provider()?;
        fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
        tools::KUBECTL.find()?;
        let kubeconfig = folder.join("admin.kubeconfig");
        let kubectl = match provider {
            Provider::Current => Kubectl::of_person(args.kubeconfig.as_deref(), args.context.as_deref(), kubeconfig)?,
            Provider::Kind | Provider::K3d => {
                refuse_leftover(provider)?;
                println!("making cluster {NAME} of {} node(s)", args.nodes);
                if let Err(error) = make(provider, args, &folder, &kubeconfig) {
                    // Half a cluster is a leftover too.
                    return match remove(provider) {
                        Ok(()) => Err(error),
                        Err(left) => Err(error.context(format!("and cluster {NAME} may be left: {left:#}"))),
                    };
                }
                Kubectl::with(kubeconfig)?
            }
        };
        Ok(Self { provider, keep: args.keep, kubectl, folder, installed: false })
    }

    /// kubectl as the cluster's administrator.
    pub(crate) fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Where files about this cluster go.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Applies the manifests; those of an installation that was there before stay at the end.
    pub(crate) fn install(&mut self) -> Result<()> {
        self.installed = !self.kubectl.has_manifests()?;
        if !self.installed {
            println!("the manifests are in this cluster already: they are brought to this version, and stay");
        }
        self.kubectl.apply_manifests()
    }

    /// Brings an image of the local engine onto the nodes of a cluster made here; says so where it cannot.
    pub(crate) fn load_image(&self, image: &str) -> Result<()> {
        let mut load = match self.provider {
            Provider::Current => return Ok(()),
            Provider::Kind => command(&tools::KIND.find()?, &["load", "docker-image", image, "--name", NAME]),
            Provider::K3d => command(&tools::K3D.find()?, &["image", "import", image, "--cluster", NAME]),
        };
        if shell::succeeds(Command::new("docker").args(["image", "inspect", image])) {
            return shell::run(&mut load);
        }
        println!("{image} is not in the local engine (`docker pull {image}`): cases that need it are skipped");
        Ok(())
    }

    /// A command that prints the API server's audit log, where this cluster keeps one within reach.
    pub(crate) fn audit_log(&self) -> Option<Vec<String>> {
        let nodes = self.kubectl.names(&["nodes", "-l", "node-role.kubernetes.io/control-plane"]).ok()?;
        let node = nodes.first()?;
        // A node of kind is a container of the same name.
        let kept = shell::succeeds(Command::new("docker").args(["exec", node, "test", "-s", AUDIT_LOG]));
        kept.then(|| ["docker", "exec", node, "cat", AUDIT_LOG].map(str::to_owned).to_vec())
    }

    /// Removes what was made: `namespaces` by their prefix, the manifests, the cluster itself.
    pub(crate) fn give_back(self, prefix: &str) -> Result<()> {
        if self.keep {
            println!("kept; kubeconfig: {}", self.kubectl.kubeconfig().display());
            println!("to remove it: {}", self.how_to_remove(prefix));
            return Ok(());
        }
        let removed = match self.provider {
            Provider::Kind | Provider::K3d => remove(self.provider),
            Provider::Current => {
                let namespaces = self.remove_namespaces(prefix);
                let manifests = if self.installed { self.kubectl.delete_manifests() } else { Ok(()) };
                namespaces.and(manifests)
            }
        };
        // It holds nothing but credentials and what they were made from.
        fs::remove_dir_all(&self.folder).with_context(|| format!("could not remove {}", self.folder.display()))?;
        removed
    }

    fn remove_namespaces(&self, prefix: &str) -> Result<()> {
        let all = self.kubectl.names(&["namespaces"])?;
        let made: Vec<_> = all.iter().map(String::as_str).filter(|name| name.starts_with(prefix)).collect();
        if made.is_empty() {
            return Ok(());
        }
        println!("removing {} namespace(s) {prefix}*", made.len());
        let arguments = [&["delete", "namespace", "--ignore-not-found", "--timeout", "300s"], made.as_slice()].concat();
        shell::finish(&mut self.kubectl.command(arguments))
    }

    fn how_to_remove(&self, prefix: &str) -> String {
        match self.provider {
            Provider::Kind | Provider::K3d => leftover_remedy(self.provider),
            Provider::Current => {
                let manifests = if self.installed { ", then `kubectl delete -k deploy/kubernetes`" } else { "" };
                format!("delete the namespaces {prefix}*{manifests}")
            }
        }
    }
}

impl ClusterArgs {
    fn provider(&self) -> Result<Provider> {
        let given = self.kubeconfig.is_some() || self.context.is_some();
        let from_environment = std::env::var_os("KUBECONFIG").is_some_and(|paths| !paths.is_empty());
        choose(self.cluster, given, from_environment)
    }
}

fn choose(asked: Option<Provider>, given: bool, from_environment: bool) -> Result<Provider> {
    match asked {
        Some(Provider::Kind | Provider::K3d) if given => {
            bail!(
                "`--kubeconfig` and `--context` name a cluster that is there: leave them out, or say `--cluster current`"
            )
        }
        Some(provider) => Ok(provider),
        None if given || from_environment => Ok(Provider::Current),
        None => Ok(Provider::Kind),
    }
}

fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn refuse_leftover(provider: Provider) -> Result<()> {
    let list = match provider {
        Provider::Kind => shell::read(&mut command(&tools::KIND.find()?, &["get", "clusters", "--quiet"]))?,
        Provider::K3d => shell::read(&mut command(&tools::K3D.find()?, &["cluster", "list", "--no-headers"]))?,
        Provider::Current => return Ok(()),
    };
    let taken = list.lines().any(|line| line.split_whitespace().next() == Some(NAME));
    if taken {
        bail!("a cluster {NAME} is there already, perhaps from `--keep`: remove it ({})", leftover_remedy(provider));
    }
    Ok(())
}

fn leftover_remedy(provider: Provider) -> String {
    match provider {
        Provider::K3d => format!("`k3d cluster delete {NAME}`"),
        Provider::Kind | Provider::Current => format!("`kind delete cluster --name {NAME}`"),
    }
}

fn make(provider: Provider, args: &ClusterArgs, folder: &Path, kubeconfig: &Path) -> Result<()> {
    let image: Vec<&str> = args.image.iter().flat_map(|image| ["--image", image]).collect();
    match provider {
        Provider::Kind => {
            let policy = folder.join("audit-policy.yaml");
            fs::write(&policy, AUDIT_POLICY)?;
            let config = folder.join("kind.yaml");
            fs::write(&config, kind_config(args.nodes, &policy))?;
            let mut kind = command(&tools::KIND.find()?, &["create", "cluster", "--name", NAME, "--wait", "180s"]);
            shell::run(kind.arg("--config").arg(config).arg("--kubeconfig").arg(kubeconfig).args(image))
        }
        Provider::K3d => {
            let agents = (args.nodes - 1).to_string();
            let program = tools::K3D.find()?;
            let mut k3d = command(&program, &["cluster", "create", NAME, "--wait", "--agents", &agents]);
            let aside = ["--kubeconfig-update-default=false", "--kubeconfig-switch-context=false"];
            shell::run(k3d.args(aside).args(image))?;
            let text = shell::read(&mut command(&program, &["kubeconfig", "get", NAME]))?;
            shell::write_private(kubeconfig, &text)
        }
        Provider::Current => Ok(()),
    }
}

fn remove(provider: Provider) -> Result<()> {
    match provider {
        Provider::Kind => shell::finish(&mut command(&tools::KIND.find()?, &["delete", "cluster", "--name", NAME])),
        Provider::K3d => shell::finish(&mut command(&tools::K3D.find()?, &["cluster", "delete", NAME])),
        Provider::Current => Ok(()),
    }
}

const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

/// A cluster that keeps an audit log (cases read it, to see that nothing was written) and whose every node takes pods.
fn kind_config(nodes: u8, policy: &Path) -> String {
    // kind takes the taint off the only node of a cluster by itself, and fails where there is none.
    let untainted =
        if nodes > 1 { "  - |\n    kind: InitConfiguration\n    nodeRegistration: {taints: []}\n" } else { "" };
    // A JSON string is a YAML string.
    let policy = serde_json::Value::from(policy.to_string_lossy());
    let mut config = format!(
        "\
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
- role: control-plane
  extraMounts: [{{hostPath: {policy}, containerPath: /etc/kubernetes/audit/policy.yaml, readOnly: true}}]
  kubeadmConfigPatches:
{untainted}  - |
    kind: ClusterConfiguration
    apiServer:
      extraArgs: {{audit-log-path: {AUDIT_LOG}, audit-policy-file: /etc/kubernetes/audit/policy.yaml}}
      extraVolumes:
      - {{name: policy, hostPath: /etc/kubernetes/audit, mountPath: /etc/kubernetes/audit, readOnly: true, pathType: DirectoryOrCreate}}
      - {{name: log, hostPath: /var/log/kubernetes, mountPath: /var/log/kubernetes, pathType: DirectoryOrCreate}}
"
    );
    for _ in 1..nodes {
        // Writing into a String cannot fail.
        let _ = writeln!(config, "- role: worker");
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_decides_which_cluster_is_meant() {
        use Provider::{Current, K3d, Kind};
        let rows = [
            (None, false, false, Some(Kind)),
            (None, true, false, Some(Current)),
            (None, false, true, Some(Current)),
            (Some(Kind), false, true, Some(Kind)),
            (Some(K3d), false, false, Some(K3d)),
            (Some(Current), false, false, Some(Current)),
            (Some(Kind), true, false, None),
        ];
        for (asked, given, from_environment, expected) in rows {
            let chosen = choose(asked, given, from_environment).ok();
            assert_eq!(chosen, expected, "{asked:?}, option {given}, variable {from_environment}");
        }
    }

    #[test]
    fn a_cluster_has_as_many_nodes_as_asked_for() {
        for nodes in 1..=3 {
            let config = kind_config(nodes, Path::new("/tmp/a b/policy.yaml"));
            assert_eq!(config.matches("- role:").count(), usize::from(nodes), "{config}");
            assert!(config.contains("hostPath: \"/tmp/a b/policy.yaml\""), "{config}");
        }
    }
}

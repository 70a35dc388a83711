//! One app, brought up on a real cluster and taken away again, with every step told.
//!
//! It holds as a test does: who must be let in is, who must not be is not, and what was destroyed is gone, or
//! this fails and says which.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::cluster::{Cluster, ClusterArgs};
use crate::kubectl::{ACCOUNT, Kubectl};
use crate::shell;

/// The plan that is shown, and what it consists of.
const PLAN: &str = "examples/hello.json";
const WORKLOAD: &str = "web";
const PORT: &str = "8080";
/// What visitors are made of; the plan's own image.
const IMAGE: &str = "busybox:1.37";
/// The labels of Pando's server, which apps let in.
const SERVER: &str = "app.kubernetes.io/name=pando,app.kubernetes.io/component=server";

/// What `cargo xtask demo` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The ranges of the cluster's pods, where its nodes do not tell.
    #[arg(long)]
    pod_cidr: Option<String>,
    /// The range of the cluster's Services, where the cluster does not tell (it does since Kubernetes 1.33).
    #[arg(long)]
    service_cidr: Option<String>,
}

/// Shows it, and removes what it made, whatever comes.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut cluster = Cluster::obtain(&args.cluster, shell::own_folder("demo"))?;
    let bundle = format!("demo-{}", shell::run_id());
    let outcome = show(args, &mut cluster, &bundle);
    // The one thing in a namespace that is not the demonstration's own.
    let visitor = if args.cluster.keep { Ok(()) } else { dismiss(cluster.kubectl(), &bundle) };
    let removed = cluster.give_back(&format!("pando-{bundle}")).and(visitor);
    match (outcome, removed) {
        (Ok(()), removed) => removed.context("it worked, and what it made could not be removed"),
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(left)) => Err(error.context(format!("and what was made could not be removed: {left:#}"))),
    }
}

fn say(what: &str) {
    println!("\n# {what}");
}

fn show(args: &Args, cluster: &mut Cluster, bundle: &str) -> Result<()> {
    cluster.load_image(IMAGE)?;
    say("An operator installs Pando's namespace, its account and the account's rights.");
    cluster.install()?;
    let pando = Pando::build(args, cluster, bundle)?;

    say(&format!("Pando, under those rights and no others, makes the app of {PLAN}."));
    pando.run("apply", &[&pando.plan])?;
    say("What is there now:");
    pando.run("observe", &[bundle])?;
    let url = pando.read("upstream", &[bundle, WORKLOAD, PORT])?;
    let url = url.trim();
    say(&format!("Pando's proxy reaches it at {url}."));

    let server = Visitor { namespace: ACCOUNT.0.to_owned(), name: format!("visitor-{bundle}") };
    let stranger = Visitor { namespace: format!("pando-{bundle}-stranger"), name: "visitor".to_owned() };
    let kubectl = cluster.kubectl();
    shell::run(&mut kubectl.command(["create", "namespace", &stranger.namespace]))?;
    server.arrive(kubectl)?;
    stranger.arrive(kubectl)?;
    say("A pod that is Pando's server asks:");
    let page = server.asks_until_answered(kubectl, url)?;
    println!("{}", page.trim());
    say("A pod of another namespace, which only wears the same labels, asks:");
    match stranger.asks(kubectl, url) {
        Ok(page) => bail!(
            "it was answered ({}): the network plugin of this cluster does not enforce NetworkPolicy",
            page.trim()
        ),
        // A visitor that could not even ask would prove nothing.
        Err(error) if was_shut_out(&error.to_string()) => println!("No answer, as it should be."),
        Err(error) => return Err(error.context("the stranger could not ask")),
    }

    say("Pando stops the app: its pod ends, all else stays.");
    pando.run("stop", &[bundle])?;
    pando.run("observe", &[bundle])?;
    ensure!(server.asks(kubectl, url).is_err(), "a stopped app still answers");
    say("Pando takes the app away.");
    pando.run("destroy", &[bundle])?;
    let namespace = format!("pando-{bundle}");
    let left = kubectl.names(&["namespaces"])?.contains(&namespace);
    ensure!(!left, "the namespace {namespace} is still there");
    println!("Nothing of it is left.");
    Ok(())
}

/// `pando-k8s` with Pando's account on the cluster.
struct Pando {
    program: PathBuf,
    kubeconfig: PathBuf,
    ranges: [String; 2],
    plan: String,
}

impl Pando {
    /// Builds it, and writes the plan under the id `bundle`, which nobody else's app has.
    fn build(args: &Args, cluster: &Cluster, bundle: &str) -> Result<Self> {
        // `--workspace`: the same features as everything else that is built here.
        shell::run(shell::cargo().args(["build", "--quiet", "--workspace", "--bin", "pando-k8s"]))?;
        let account = cluster.kubectl().account(1, cluster.folder().join("account.kubeconfig"))?;
        let plan = cluster.folder().join("plan.json");
        let text = fs::read_to_string(shell::root().join(PLAN)).with_context(|| format!("could not read {PLAN}"))?;
        fs::write(&plan, renamed(&text, bundle)?).with_context(|| format!("could not write {}", plan.display()))?;
        Ok(Self {
            program: shell::built("pando-k8s"),
            kubeconfig: account.kubeconfig().to_owned(),
            ranges: ranges(args, cluster.kubectl())?,
            plan: plan.display().to_string(),
        })
    }

    fn run(&self, verb: &str, arguments: &[&str]) -> Result<()> {
        println!("$ pando-k8s {verb} {}", arguments.join(" "));
        shell::run(&mut self.command(verb, arguments))
    }

    fn read(&self, verb: &str, arguments: &[&str]) -> Result<String> {
        println!("$ pando-k8s {verb} {}", arguments.join(" "));
        shell::read(&mut self.command(verb, arguments))
    }

    fn command(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        // What somebody configured for an installation of their own is not meant here.
        command.env_remove("PANDO_CONFIG");
        for range in &self.ranges {
            command.arg("--set").arg(range);
        }
        command.arg(verb).args(arguments);
        command
    }
}

/// The plan for another bundle.
fn renamed(plan: &str, bundle: &str) -> Result<String> {
    let mut plan: Value = serde_json::from_str(plan).with_context(|| format!("{PLAN} is not JSON"))?;
    plan["bundle_id"] = bundle.into();
    Ok(plan.to_string())
}

/// The two settings without which nothing runs: where pods and Services have their addresses.
fn ranges(args: &Args, kubectl: &Kubectl) -> Result<[String; 2]> {
    let pods = match &args.pod_cidr {
        Some(given) => given.clone(),
        None => pod_ranges(&kubectl.get(&["nodes"])?)
            .context("the nodes do not tell the range of the cluster's pods: give it by `--pod-cidr`")?,
    };
    let services = match &args.service_cidr {
        Some(given) => given.clone(),
        None => kubectl
            .get(&["servicecidrs.networking.k8s.io", "kubernetes"])
            .ok()
            .and_then(|found| joined(found["spec"]["cidrs"].as_array()?.iter()))
            .context("the cluster does not tell the range of its Services: give it by `--service-cidr`")?,
    };
    Ok([format!("pod_cidr={pods}"), format!("service_cidr={services}")])
}

/// The ranges of all nodes, comma-separated; `None` when a node tells none.
fn pod_ranges(nodes: &Value) -> Option<String> {
    let lists = nodes["items"].as_array()?.iter().map(|node| node["spec"]["podCIDRs"].as_array());
    joined(lists.collect::<Option<Vec<_>>>()?.into_iter().flatten())
}

fn joined<'a>(texts: impl Iterator<Item = &'a Value>) -> Option<String> {
    let texts: Vec<_> = texts.map(Value::as_str).collect::<Option<_>>()?;
    if texts.is_empty() { None } else { Some(texts.join(",")) }
}

/// A pod that wears the labels of Pando's server and asks for pages.
struct Visitor {
    namespace: String,
    name: String,
}

impl Visitor {
    fn arrive(&self, kubectl: &Kubectl) -> Result<()> {
        let (image, labels) = (format!("--image={IMAGE}"), format!("--labels={SERVER}"));
        let pod = ["run", &self.name, "-n", &self.namespace, &image, &labels, "--restart=Never", "--command", "--"];
        let idle = ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"];
        shell::run(&mut kubectl.command([pod.as_slice(), &idle].concat()))?;
        let pod = format!("pod/{}", self.name);
        let wait = ["wait", "-n", &self.namespace, &pod, "--for=condition=Ready", "--timeout=120s"];
        shell::read(&mut kubectl.command(wait)).map(|_| ())
    }

    /// The page at `url`, or what `wget` said instead.
    fn asks(&self, kubectl: &Kubectl, url: &str) -> Result<String> {
        let fetch = ["wget", "-q", "-O", "-", "-T", "3", url];
        shell::read(
            &mut kubectl.command([["exec", "-n", &self.namespace, &self.name, "--"].as_slice(), &fetch].concat()),
        )
    }

    /// The network plugin learns of a new pod, and the DNS of a new Service, in its own time.
    fn asks_until_answered(&self, kubectl: &Kubectl, url: &str) -> Result<String> {
        let watch = shell::Stopwatch::start();
        loop {
            match self.asks(kubectl, url) {
                Ok(page) => return Ok(page),
                Err(error) if watch.time() > Duration::from_secs(30) || shell::interrupted() => {
                    return Err(error.context("the app does not answer Pando's server"));
                }
                Err(_) => shell::pause(Duration::from_millis(500)),
            }
        }
    }
}

/// Whether `wget` found the address and was let no further.
fn was_shut_out(said: &str) -> bool {
    ["timed out", "refused"].iter().any(|words| said.contains("wget: ") && said.contains(words))
}

fn dismiss(kubectl: &Kubectl, bundle: &str) -> Result<()> {
    let pod = format!("visitor-{bundle}");
    let delete = ["delete", "pod", "-n", ACCOUNT.0, &pod, "--ignore-not-found", "--grace-period=1"];
    shell::read(&mut kubectl.command(delete)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_ranges_of_all_nodes_are_told_and_none_is_guessed() {
        let node = |ranges: Value| json!({"spec": {"podCIDRs": ranges}});
        let nodes = json!({"items": [node(json!(["10.244.0.0/24", "fd00::/64"])), node(json!(["10.244.1.0/24"]))]});
        assert_eq!(pod_ranges(&nodes).as_deref(), Some("10.244.0.0/24,fd00::/64,10.244.1.0/24"));
        assert_eq!(pod_ranges(&json!({"items": [node(json!(["10.244.0.0/24"])), node(Value::Null)]})), None);
        assert_eq!(pod_ranges(&json!({"items": []})), None);
    }

    #[test]
    fn only_a_visitor_who_found_the_door_was_shut_out() {
        for (said, expected) in [
            ("wget: download timed out", true),
            ("wget: can't connect to remote host (10.244.1.9): Connection refused", true),
            ("wget: bad address 'web.pando-x.svc.cluster.local:8080'", false),
            ("error: timed out waiting for the pod", false),
        ] {
            assert_eq!(was_shut_out(said), expected, "{said}");
        }
    }

    #[test]
    fn the_plan_shown_is_the_example_under_another_id() {
        let text = fs::read_to_string(shell::root().join(PLAN)).expect("the example");
        let plan: Value = serde_json::from_str(&renamed(&text, "demo-1").expect("it is JSON")).expect("JSON");
        assert_eq!(plan["bundle_id"], "demo-1");
        let workload = &plan["workloads"][0];
        assert_eq!((&workload["name"], &workload["image"]), (&json!(WORKLOAD), &json!(IMAGE)));
        assert_eq!(workload["ports"][0]["number"].to_string(), PORT);
    }
}

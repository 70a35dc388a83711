//! The built program in a world of its own: an empty home, no variables, and, where asked for, a cluster in memory.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use pando_cluster::Kind;
use pando_cluster::names::object;
use pando_fakecluster::{FakeCluster, FakeConfig, face};
use pando_kubecluster::tokio_env;
use pando_network::canary::{Family, Held, Standing};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// What a run of the program ended with.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The failure as programs get it.
    pub(crate) fn failure(&self) -> Value {
        serde_json::from_str(&self.err).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn says(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        for word in words {
            assert!(self.out.contains(word) || self.err.contains(word), "{word:?} is not in {self:?}");
        }
    }
}

/// What the program shows to the cluster in memory.
pub(crate) const TOKEN: &str = "sesame-sesame";

/// Where the program runs.
pub(crate) struct World {
    home: TempDir,
    /// What the cluster runs on; it lives as long as its world.
    cluster: Option<Runtime>,
    variables: Vec<(&'static str, String)>,
}

impl World {
    /// A world without a cluster, with the examples' configuration.
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let config = example("config.json").to_string_lossy().into_owned();
        Self { home, cluster: None, variables: vec![("PANDO_CONFIG", config)] }
    }

    /// The same with a cluster in memory, which the home's own kubeconfig names.
    pub(crate) fn with_cluster(config: FakeConfig) -> Self {
        let mut world = Self::new();
        let runtime = Runtime::new().expect("a runtime");
        let address = runtime.block_on(async {
            let env = tokio_env();
            let verdict = verdict(env.wall.now());
            let cluster = FakeCluster::new(env, config);
            cluster.with(|store| store.insert(Kind::ConfigMap, verdict));
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
            let address = listener.local_addr().expect("it has an address");
            runtime.spawn(axum::serve(listener, face::router(&cluster)).into_future());
            address
        });
        let kubeconfig = format!(
            "current-context: fake\ncontexts: [{{name: fake, context: {{cluster: fake, user: fake}}}}]\n\
             clusters: [{{name: fake, cluster: {{server: 'http://{address}'}}}}]\nusers: [{{name: fake, user: {{token: {TOKEN}}}}}]\n"
        );
        world.write(".kube/config", &kubeconfig);
        world.cluster = Some(runtime);
        world
    }

    /// The same with one more variable.
    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.retain(|(other, _)| *other != name);
        self.variables.push((name, value.to_owned()));
        self
    }

    /// Writes a file below the home, where the program also runs.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        let parent = path.parent().expect("it lies in the home");
        std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&path, text)).expect("written");
        path
    }

    /// The program with these words, ready to start.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pando-k8s"));
        command.args(words).current_dir(self.home.path()).env_clear().env("HOME", self.home.path());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Run {
        ended(self.command(words).output().expect("the program starts"))
    }
}

/// That network policies are enforced, as it is kept where that was found out then.
fn verdict(at: Timestamp) -> Value {
    let held = Held::Passed { time_to_deny: Duration::from_secs(1) };
    let standing = Standing { held, families: [Family::V4].into(), nodes: vec!["node-1".to_owned()], at };
    json!({
        "metadata": {"namespace": "pando", "name": object::ISOLATION},
        "data": standing.to_texts("of a test"),
    })
}

/// What a process left.
pub(crate) fn ended(output: Output) -> Run {
    let text = |bytes| String::from_utf8(bytes).expect("the program writes text");
    Run { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

/// A file that the repository shows to people.
pub(crate) fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

//! How long calls of the adapter take, and on whom they wait. Figures; nothing is asserted.
//!
//! `cargo xtask bench` runs it. Without arguments on the cluster in memory, where a call takes 10 ms and all else no time: what is
//! left is the number of calls and how many of them wait for one another. With a kubeconfig, and how often each is run, on a real
//! cluster, as whomever the kubeconfig names.

mod record;
mod scenario;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use pando_adapter::{KubernetesRuntime, Settings};
use pando_api::{CallContext, RuntimeAdapter as _};
use pando_conformance::Bed as _;
use pando_conformance::beds::MemoryBed;
use pando_fakecluster::sim::Sim;
use pando_kubecluster::{ConnectOptions, KubeCluster, tokio_env};
use serde_json::json;

use crate::record::Figures;
use crate::scenario::{Ground, SCENARIOS};

/// How long a call takes in memory.
const LATENCY: Duration = Duration::from_millis(10);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &*arguments {
        [] => in_memory(),
        [kubeconfig, runs] => on_a_cluster(kubeconfig, runs.parse()?),
        _ => Err("bench takes nothing, or a kubeconfig and a number of runs".into()),
    }
}

fn settings() -> Result<Settings, pando_api::Error> {
    Settings::from_json(&json!({"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/16", "stop_grace_seconds": 2}))
}

fn in_memory() -> Result<(), Box<dyn Error>> {
    println!("\n{:<34}{:>7}{:>8}{:>14}", "in memory, 10 ms a call", "calls", "trips", "virtual time");
    let settings = settings()?;
    for scenario in SCENARIOS {
        let sim = Sim::new(1);
        let figures = sim.block_on(async {
            let bed = MemoryBed::direct(sim.env()).await;
            let change = |config: &mut pando_fakecluster::FakeConfig| {
                config.latency = LATENCY;
                config.policy_lag = Duration::ZERO;
            };
            let bed = bed.beside(change).await;
            let ground = Ground {
                cluster: bed.cluster(),
                env: bed.env().clone(),
                settings: settings.clone(),
                command: bed.command(&scenario::PROGRAM),
                bundle: bed.unique("bench"),
            };
            ground.measure(scenario).await
        });
        match figures {
            Ok(Figures { calls, trips, total, .. }) => {
                println!("{:<34}{calls:>7}{trips:>8}{:>14}", scenario.name, millis(total));
            }
            Err(error) => println!("{:<34} {error}", scenario.name),
        }
    }
    Ok(())
}

fn on_a_cluster(kubeconfig: &str, runs: usize) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let settings = settings()?;
    let header = ["calls", "trips", "total", "(least", "most)", "API server", "kubelet", "other waits", "ours"];
    print!("\n{:<34}", format!("on a cluster, median of {runs}"));
    println!("{}", header.map(|name| format!("{name:>12}")).concat());
    runtime.block_on(async {
        let env = tokio_env();
        let options = ConnectOptions { kubeconfig: Some(kubeconfig.into()), ..ConnectOptions::default() };
        let cluster = Arc::new(KubeCluster::connect(&options, env.clone()).await?);
        // Kept for every process: no figure has a canary in it.
        KubernetesRuntime::new(settings.clone(), Arc::<KubeCluster>::clone(&cluster), env.clone())
            .health_check(&CallContext::new("bench"))
            .await?;
        for scenario in SCENARIOS {
            let mut all = Vec::new();
            let mut failed = None;
            for _ in 0..runs {
                let ground = Ground {
                    cluster: Arc::<KubeCluster>::clone(&cluster),
                    env: env.clone(),
                    settings: settings.clone(),
                    command: pando_conformance::program::command(&scenario::PROGRAM),
                    bundle: format!("bench-{:08x}", env.random_u64() >> 32),
                };
                match ground.measure(scenario).await {
                    Ok(figures) => all.push(figures),
                    Err(error) => failed = Some(error),
                }
            }
            match failed {
                Some(error) => println!("{:<34} {error}", scenario.name),
                None => row(scenario.name, &all),
            }
        }
        Ok(())
    })
}

fn row(name: &str, all: &[Figures]) {
    let median = |of: fn(&Figures) -> Duration| {
        let mut times: Vec<_> = all.iter().map(of).collect();
        times.sort();
        times.get(times.len() / 2).copied().unwrap_or_default()
    };
    let (least, most) = (all.iter().map(|it| it.total).min(), all.iter().map(|it| it.total).max());
    let Some(one) = all.first() else { return };
    let times = [
        median(|it| it.total),
        least.unwrap_or_default(),
        most.unwrap_or_default(),
        median(|it| it.api),
        median(|it| it.kubelet),
        median(|it| it.waits),
        median(|it| it.ours),
    ];
    println!(
        "{name:<34}{:>12}{:>12}{}",
        one.calls,
        one.trips,
        times.map(|time| format!("{:>12}", millis(time))).concat()
    );
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

//! What is logged, and where: to the error output, above the progress.

use std::io::IsTerminal;
use std::sync::Arc;

use tracing_subscriber::EnvFilter;

use crate::screen::{LogWriter, Screen};

/// Begins to log. Without `-v` only warnings; `RUST_LOG` overrides.
pub(crate) fn start(screen: &Arc<Screen>, verbose: u8) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(filter(verbose)));
    let screen = Arc::clone(screen);
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(move || LogWriter(Arc::clone(&screen)))
        .init();
}

/// The libraries beneath speak up two steps later: their words are about connections, not about apps.
const fn filter(verbose: u8) -> &'static str {
    match verbose {
        0 => "warn",
        1 => "warn,pando_adapter=info,pando_cluster=info,pando_kubecluster=info,pando_network=info",
        2 => "info,pando_adapter=debug,pando_cluster=debug,pando_kubecluster=debug,pando_network=debug",
        _ => "debug,pando_adapter=trace,pando_cluster=trace,pando_kubecluster=trace,pando_network=trace",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_is_one() {
        for verbose in 0..=4 {
            let text = filter(verbose);
            assert!(EnvFilter::try_new(text).is_ok(), "{text}");
        }
    }
}

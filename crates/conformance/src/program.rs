//! A [`Behaviour`] as a shell script, for containers that really run.
//!
//! The same value is played out by the cluster in memory, which runs no shell: its kubelet is told which
//! behaviour a script was made from ([`crate::beds::Scripts`]). So a case makes the very same pod on every bed.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use pando_fakecluster::behaviour::{Behaviour, Host, Outcome, Target};

/// The command line of a program that does `behaviour`, for an image that holds busybox.
///
/// # Panics
///
/// When it dials a pod by name: a script needs an address, which the caller can look up.
pub fn command(behaviour: &Behaviour) -> Vec<String> {
    match behaviour {
        Behaviour::StartError { .. } => vec!["/no-such-program".to_owned()],
        other => vec!["sh".to_owned(), "-c".to_owned(), script(other)],
    }
}

/// How a program that was asked to end does so: at once, as one without a handler does that is not process 1.
const END_ON_TERM: &str = "trap 'exit 143' TERM\n";

/// Waits for a signal; a shell hears one only while it waits for a child.
const FOR_EVER: &str = "while :; do sleep 3600 & wait $!; done\n";

/// Dials once and says what came of it. Whoever is still connected when its time is up was let in.
const DIAL: &str = r#"dial() {
  said=$(timeout 3 nc -w 1 "$1" "$2" </dev/null 2>&1)
  case $said in
    *"timed out"*) what=dropped;; *"bad address"*|*nreachable*|*"No route"*) what=noroute;; *refused*) what=refused;; *) what=open;;
  esac
  echo "dial $1 $2 $what"
  [ $what = open ]
}
now() { read -r up _ </proc/uptime; echo "${up%.*}${up#*.}"; }
"#;

fn script(behaviour: &Behaviour) -> String {
    match behaviour {
        Behaviour::Run => format!("{END_ON_TERM}{FOR_EVER}"),
        Behaviour::Exit { after, code } if after.is_zero() => format!("exit {code}\n"),
        Behaviour::Exit { after, code } => format!("{END_ON_TERM}sleep {} & wait $!\nexit {code}\n", seconds(*after)),
        Behaviour::IgnoreTerm => format!("trap '' TERM\n{FOR_EVER}"),
        Behaviour::TrapTerm { exit_after, code } => {
            format!("trap 'sleep {}; exit {code}' TERM\n{FOR_EVER}", seconds(*exit_after))
        }
        Behaviour::Listen { ports } => {
            let mut script = format!("{END_ON_TERM}mkdir -p /tmp/www && echo hello >/tmp/www/index.html\n");
            for port in ports {
                push(&mut script, format_args!("httpd -p {port} -h /tmp/www || exit 1\n"));
            }
            script + FOR_EVER
        }
        Behaviour::Dial { targets, every, during, then } => {
            let (rounds, pause) = (dials(targets), seconds((*every).max(Duration::from_millis(1))));
            let end = centiseconds(*during);
            format!(
                "{END_ON_TERM}{DIAL}end=$(($(now) + {end}))\nwhile :; do\n{rounds}[ $(now) -lt $end ] || break\nsleep {pause}\ndone\n{}",
                script(then)
            )
        }
        Behaviour::DialUntilClosed { targets, in_a_row, limit } => {
            let mut round = String::from("open=0\n");
            for target in targets {
                push(&mut round, format_args!("dial {} && open=1\n", words(target)));
            }
            let end = centiseconds(*limit);
            format!(
                "{END_ON_TERM}{DIAL}begun=$(now) closed=0\nwhile [ $(($(now) - begun)) -lt {end} ]; do\n{round}\
                 if [ $open = 0 ]; then closed=$((closed + 1)); else closed=0; fi\n\
                 [ $closed -lt {in_a_row} ] || {{ echo \"closed after $((($(now) - begun) * 10)) ms\" >/dev/termination-log; exit 0; }}\n\
                 sleep 0.05\ndone\necho 'after {} s: not closed' >/dev/termination-log\nexit 1\n",
                limit.as_secs()
            )
        }
        Behaviour::Survey { targets, pause, .. } => {
            let dial = |(index, target)| format!("dial {} >/dev/null; echo \"$round {index} $what\"\n", words(target));
            let round: String = targets.iter().enumerate().map(dial).collect();
            let pause = seconds((*pause).max(Duration::from_millis(1)));
            format!(
                "{END_ON_TERM}{DIAL}round=0\nwhile :; do\nround=$((round + 1))\n{round}echo \"$round .\"\nsleep {pause} & wait $!\ndone\n"
            )
        }
        Behaviour::Print { lines, then } => {
            let mut print = String::new();
            for line in lines {
                push(&mut print, format_args!("printf '%s\\n' {}\n", quoted(line)));
            }
            print + &script(then)
        }
        Behaviour::Write { pieces, then } => {
            let mut write = String::new();
            for piece in pieces {
                push(&mut write, format_args!("printf '%b' '{}'\n", escaped(piece)));
            }
            write + &script(then)
        }
        Behaviour::Count { to, width, pause, then } => {
            let (batch, pause) = (Behaviour::BATCH, seconds((*pause).max(Duration::from_millis(1))));
            format!(
                "{END_ON_TERM}z=$(head -c {width} /dev/zero | tr '\\0' z)\ni=0\nwhile [ $i -lt {to} ]; do\ni=$((i + 1))\n\
                 echo \"$i $z\"\n[ $((i % {batch})) != 0 ] || sleep {pause}\ndone\n{}",
                script(then)
            )
        }
        // One line without an end, which tail keeps whole.
        Behaviour::EatMemory => "exec tail /dev/zero\n".to_owned(),
        Behaviour::StartError { .. } => "exec /no-such-program\n".to_owned(),
    }
}

fn dials(targets: &[Target]) -> String {
    targets.iter().fold(String::new(), |mut script, target| {
        push(&mut script, format_args!("dial {}\n", words(target)));
        script
    })
}

/// Host and port as two words of a shell.
pub(crate) fn words(target: &Target) -> String {
    let host = match &target.host {
        Host::Address(address) => address.to_string(),
        Host::Name(name) => name.clone(),
        Host::Pod(pod) => panic!("a script cannot dial {pod:?}: look up its address first"),
    };
    format!("{} {}", quoted(&host), target.port)
}

/// Text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Bytes as `printf %b` reads them, between single quotes.
fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        match byte {
            b' '..=b'~' if !matches!(byte, b'\'' | b'\\') => text.push(char::from(*byte)),
            _ => push(&mut text, format_args!("\\0{byte:03o}")),
        }
        text
    })
}

/// Seconds as `sleep` reads them.
fn seconds(time: Duration) -> String {
    format!("{}.{:03}", time.as_secs(), time.subsec_millis())
}

fn centiseconds(time: Duration) -> u128 {
    time.as_millis() / 10
}

/// Writing into a String cannot fail.
fn push(script: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = script.write_fmt(text);
}

/// What a log of a program that dials says of it: where to, and what came of it.
pub fn dialled(log: &str) -> Vec<(Target, Outcome)> {
    log.lines().filter_map(dialled_line).collect()
}

fn dialled_line(line: &str) -> Option<(Target, Outcome)> {
    let mut words = line.strip_prefix("dial ")?.split(' ');
    let (host, port, outcome) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
    let host = host.parse::<IpAddr>().map_or_else(|_| Host::Name(host.to_owned()), Host::Address);
    let outcome = match outcome {
        "open" => Outcome::Open,
        "refused" => Outcome::Refused,
        "dropped" => Outcome::Dropped,
        "noroute" => Outcome::NoRoute,
        _ => return None,
    };
    Some((Target { host, port }, outcome))
}

/// What `nc` said, as [`DIAL`] reads it; for a single dial from outside of a program.
pub(crate) fn outcome_of(said: &str) -> Outcome {
    let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if says(&["timed out"]) {
        Outcome::Dropped
    } else if says(&["bad address", "nreachable", "No route"]) {
        Outcome::NoRoute
    } else if says(&["refused"]) {
        Outcome::Refused
    } else {
        Outcome::Open
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};

    use super::*;

    /// Runs the program here; the shells of images understand what this one does.
    fn run(behaviour: &Behaviour) -> Output {
        let command = command(behaviour);
        let (program, arguments) = command.split_first().expect("a program");
        Command::new(program).args(arguments).output().expect("a shell")
    }

    #[test]
    fn a_program_prints_its_lines_and_ends_as_told() {
        let lines = ["plain", "it's $HOME \\n %s", ""].map(str::to_owned).to_vec();
        let end = Behaviour::Exit { after: Duration::ZERO, code: 3 };
        let output = run(&Behaviour::Print { lines, then: Box::new(end) });
        assert_eq!(String::from_utf8_lossy(&output.stdout), "plain\nit's $HOME \\n %s\n\n");
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn a_program_writes_any_byte_but_zero() {
        let all: Vec<u8> = (1..=255).collect();
        let end = Behaviour::Exit { after: Duration::ZERO, code: 0 };
        let output = run(&Behaviour::Write { pieces: vec![all.clone(), b"7 it's \\n".to_vec()], then: Box::new(end) });
        assert_eq!(output.stdout, [&all[..], b"7 it's \\n"].concat());
    }

    #[test]
    fn a_program_counts() {
        let end = Behaviour::Exit { after: Duration::ZERO, code: 0 };
        let pause = Duration::ZERO;
        let output = run(&Behaviour::Count { to: 1002, width: 3, pause, then: Box::new(end) });
        let lines: String = (1..=1002).fold(String::new(), |lines, number| lines + &format!("{number} zzz\n"));
        assert_eq!(String::from_utf8_lossy(&output.stdout), lines);
    }

    #[test]
    fn every_script_is_one_that_a_shell_understands() {
        let targets = || vec![Target::address([10, 0, 0, 1], 80), Target::name("it's.odd", 443)];
        let second = Duration::from_millis(1500);
        for behaviour in [
            Behaviour::Run,
            Behaviour::Exit { after: second, code: 1 },
            Behaviour::IgnoreTerm,
            Behaviour::TrapTerm { exit_after: second, code: 1 },
            Behaviour::Listen { ports: vec![80, 8080] },
            Behaviour::Dial { targets: targets(), every: second, during: second, then: Box::new(Behaviour::Run) },
            Behaviour::DialUntilClosed { targets: targets(), in_a_row: 2, limit: second },
            Behaviour::EatMemory,
        ] {
            let command = command(&behaviour);
            let check = Command::new("sh").args(["-n", "-c", &command[2]]).output().expect("a shell");
            assert!(check.status.success(), "{behaviour:?}: {}", String::from_utf8_lossy(&check.stderr));
        }
    }

    #[test]
    fn a_log_tells_what_was_dialled() {
        let log =
            "hello\ndial 10.0.0.1 443 dropped\ndial web.x 80 open\ndial web.x eighty open\ndial web.x 80 perhaps\n";
        assert_eq!(
            dialled(log),
            [(Target::address([10, 0, 0, 1], 443), Outcome::Dropped), (Target::name("web.x", 80), Outcome::Open),]
        );
    }

    #[test]
    fn what_busybox_says_is_understood() {
        let rows = [
            ("", Outcome::Open),
            ("nc: can't connect to remote host (10.0.0.1): Connection refused", Outcome::Refused),
            ("nc: can't connect to remote host (10.0.0.1): No route to host", Outcome::NoRoute),
            ("nc: timed out", Outcome::Dropped),
            ("nc: can't connect to remote host (10.0.0.1): Connection timed out", Outcome::Dropped),
            ("nc: bad address 'web.nowhere'", Outcome::NoRoute),
        ];
        for (said, expected) in rows {
            assert_eq!(outcome_of(said), expected, "{said}");
        }
    }
}

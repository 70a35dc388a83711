//! What an apply would do, for people and programs.

use std::fmt::Write as _;
use std::io::IsTerminal;

use pando_api::{Fate, FieldChange, Foreseen, Preview, WorkloadPreview};
use serde_json::{Value, json};

use crate::show::Report;
use crate::table::Table;
use crate::text;

/// A value longer than this is cut for people; programs get it whole.
const VALUE: usize = 160;

/// Whether lines are coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    /// By what would become of an object.
    Coloured,
    /// Not at all.
    Plain,
}

impl Paint {
    /// What suits where the result is written: colours are for terminals alone, and not where `NO_COLOR` says so.
    pub(crate) fn for_output() -> Self {
        let says = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if std::io::stdout().is_terminal() && !says("NO_COLOR") && !is_dumb { Self::Coloured } else { Self::Plain }
    }

    fn line(self, would: Fate, line: &str) -> String {
        let colour = match would {
            Fate::Create => 32,
            Fate::Change | Fate::Replace => 33,
            Fate::Remove => 31,
            Fate::Leave => return line.to_owned(),
        };
        match self {
            Self::Coloured => format!("\x1b[{colour}m{line}\x1b[0m"),
            Self::Plain => line.to_owned(),
        }
    }
}

/// What an apply would do.
pub(crate) fn told(preview: &Preview, paint: Paint) -> Report {
    let mut tree = json!(preview);
    tree["satisfied"] = json!(preview.is_satisfied());
    let mut table = Table::new(["WORKLOAD", "WOULD BE", "WHY"]);
    for workload in &preview.workloads {
        table.row([workload.workload.clone(), foreseen(workload.would).to_owned(), why(workload)]);
    }
    let mut text = table.print();
    for workload in &preview.workloads {
        for change in &workload.differs {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n{}: {}", text::line(&workload.workload), field(change));
        }
        if !workload.differs.is_empty() {
            text.push('\n');
        }
    }
    text += &objects(preview, paint);
    text += &waits(preview);
    text += &summary(preview);
    Report::done(text, tree)
}

const fn foreseen(would: Foreseen) -> &'static str {
    match would {
        Foreseen::Unchanged => "unchanged",
        Foreseen::Created => "created",
        Foreseen::Replaced => "replaced",
        Foreseen::StartedAgain => "started again",
        Foreseen::Adopted => "adopted",
        Foreseen::Awaited => "awaited",
        Foreseen::Removed => "removed",
    }
}

/// The cause in words, and else the fields that differ.
fn why(workload: &WorkloadPreview) -> String {
    let fields: Vec<_> = workload.differs.iter().map(|change| &*change.field).collect();
    let parts = [workload.why.clone(), fields.join(", ")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

fn objects(preview: &Preview, paint: Paint) -> String {
    let mut text = String::new();
    for object in preview.objects.iter().filter(|object| object.would != Fate::Leave) {
        let sign = match object.would {
            Fate::Create => "+",
            Fate::Change => "~",
            Fate::Replace => "-/+",
            Fate::Remove => "-",
            Fate::Leave => continue,
        };
        let line = format!("{sign:<3} {} {}", text::line(&object.kind), text::line(&object.name));
        let _ = write!(text, "\n{}", paint.line(object.would, &line));
        for change in &object.fields {
            let _ = write!(text, "\n      {}", field(change));
        }
    }
    if text.is_empty() { text } else { text + "\n" }
}

fn field(FieldChange { field, before, after }: &FieldChange) -> String {
    let value = |value: &Option<Value>| value.as_ref().map_or_else(|| "none".to_owned(), short);
    let (before, after) = (value(before), value(after));
    let note = if before == after { " (differs)" } else { "" };
    text::line(&format!("{field}: {before} -> {after}{note}")).into_owned()
}

/// The value on one line, cut where it is long.
fn short(value: &Value) -> String {
    let text = match value {
        Value::String(text) if *text == pando_api::Secret::REDACTED => return text.clone(),
        value => value.to_string(),
    };
    match text.char_indices().nth(VALUE) {
        Some((end, _)) => format!("{}… ({} more)", &text[..end], text[end..].chars().count()),
        None => text,
    }
}

fn waits(preview: &Preview) -> String {
    let mut text = String::new();
    let of_workloads = preview
        .workloads
        .iter()
        .flat_map(|workload| workload.waits_for.iter().map(|wait| format!("{}: {wait}", workload.workload)));
    for wait in preview.waits_for.iter().cloned().chain(of_workloads) {
        let _ = writeln!(text, "  {}", text::line(&wait));
    }
    if text.is_empty() { text } else { format!("\nIt would wait for:\n{text}") }
}

fn summary(preview: &Preview) -> String {
    if preview.is_satisfied() {
        return "\nNothing would change: all is as planned.\n".to_owned();
    }
    let count = |fates: &[Fate]| preview.objects.iter().filter(|object| fates.contains(&object.would)).count();
    format!(
        "\n{} to create, {} to change, {} to remove; {} stay as they are. Nothing was written.\n",
        count(&[Fate::Create]),
        count(&[Fate::Change, Fate::Replace]),
        count(&[Fate::Remove]),
        count(&[Fate::Leave])
    )
}

#[cfg(test)]
mod tests {
    use pando_api::ObjectPreview;

    use super::*;

    fn change(field: &str, before: Value, after: Value) -> FieldChange {
        let value = |value: Value| (!value.is_null()).then_some(value);
        FieldChange { field: field.to_owned(), before: value(before), after: value(after) }
    }

    fn object(kind: &str, name: &str, would: Fate, fields: Vec<FieldChange>) -> ObjectPreview {
        ObjectPreview { kind: kind.to_owned(), name: name.to_owned(), would, fields }
    }

    fn workload(name: &str, would: Foreseen) -> WorkloadPreview {
        let (why, differs, waits_for) = (String::new(), Vec::new(), Vec::new());
        WorkloadPreview { workload: name.to_owned(), would, why, differs, waits_for }
    }

    fn preview() -> Preview {
        let web = WorkloadPreview {
            differs: vec![change("image", json!("web:1"), json!("web:2"))],
            waits_for: vec!["pod web-1 to be gone".to_owned()],
            ..workload("web", Foreseen::Replaced)
        };
        let redacted = json!("[redacted]");
        Preview {
            handle: "pando-shop".to_owned(),
            waits_for: Vec::new(),
            workloads: vec![web, workload("db", Foreseen::Unchanged)],
            objects: vec![
                object("Namespace", "pando-shop", Fate::Leave, Vec::new()),
                object("Secret", "pando-env-web", Fate::Change, vec![change("data.A", redacted.clone(), redacted)]),
                object("Pod", "web-1", Fate::Remove, Vec::new()),
                object("Pod", "web-2", Fate::Create, Vec::new()),
            ],
        }
    }

    #[test]
    fn what_would_be_done_is_told_in_its_order() {
        let text = told(&preview(), Paint::Plain).text;
        let expected = "WORKLOAD   WOULD BE    WHY\nweb        replaced    image\ndb         unchanged   -\n\
            \nweb: image: \"web:1\" -> \"web:2\"\n\
            \n~   Secret pando-env-web\n      data.A: [redacted] -> [redacted] (differs)\n-   Pod web-1\n+   Pod web-2\n\
            \nIt would wait for:\n  web: pod web-1 to be gone\n\
            \n1 to create, 1 to change, 1 to remove; 1 stay as they are. Nothing was written.\n";
        assert_eq!(text, expected);
        let coloured = told(&preview(), Paint::Coloured).text;
        assert!(coloured.contains("\x1b[31m-   Pod web-1\x1b[0m\n"), "{coloured}");
    }

    #[test]
    fn a_satisfied_plan_is_told_as_such() {
        let workloads = vec![workload("db", Foreseen::Unchanged)];
        let report = told(&Preview { workloads, ..Preview::default() }, Paint::Plain);
        assert!(report.text.ends_with("\nNothing would change: all is as planned.\n"), "{}", report.text);
        assert_eq!(report.tree["satisfied"], true);
        assert_eq!(told(&preview(), Paint::Plain).tree["satisfied"], false);
    }

    #[test]
    fn a_long_value_is_cut_and_no_value_steers_the_terminal() {
        let line = field(&change("spec.egress", Value::Null, json!("ü\u{9b}31m".repeat(100))));
        assert!(line.starts_with("spec.egress: none -> \"ü\u{fffd}31m") && line.ends_with(" more)"), "{line}");
    }
}

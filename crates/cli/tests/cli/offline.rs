//! Without a cluster: files, flags, messages, exit codes.

use std::io::Write;
use std::process::Stdio;

use crate::support::{World, ended, example};
use serde_json::{Value, json};

fn path(name: &str) -> String {
    example(name).to_string_lossy().into_owned()
}

#[test]
fn a_rendered_plan_is_every_object_in_order() {
    let run = World::new().run(&["render", &path("hello.json"), "-o", "json"]);
    run.says(0, &[]);
    let list = run.json();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("List"), &json!("v1")));
    let kinds: Vec<_> = list["items"].as_array().into_iter().flatten().map(|item| &item["kind"]).collect();
    let expected =
        ["Namespace", "RoleBinding", "ServiceAccount", "NetworkPolicy", "ResourceQuota", "Secret", "Service", "Pod"];
    assert_eq!(kinds, expected.map(Value::from).iter().collect::<Vec<_>>());
    let pod = &list["items"][7];
    assert_eq!(pod["spec"]["containers"][0]["image"], "busybox:1.37");
    assert_eq!(pod["spec"]["schedulingGates"], json!([{"name": "pando.dev/start"}]));
    assert_eq!(pod["metadata"]["namespace"], list["items"][0]["metadata"]["name"]);
}

#[test]
fn a_rendered_plan_is_yaml_that_kubectl_takes() {
    let run = World::new().run(&["render", &path("nginx.json")]);
    run.says(0, &["apiVersion: v1\nkind: Namespace\n", "\n---\n", "image: nginx:1.22"]);
    assert_eq!(run.out.matches("\n---\n").count(), 7, "{}", run.out);
    assert_eq!(run.err, "");
}

#[test]
fn the_examples_name_no_secret_that_has_to_be_set_first() {
    for name in ["hello.json", "nginx.json"] {
        let world = World::new().with("KUBECONFIG", "/nonexistent");
        // Resolved before the cluster is looked for, so it is the cluster that is missed.
        world.run(&["apply", &path(name)]).says(2, &["/nonexistent"]);
    }
}

/// Forms in which a secret can be written; none of them may come out, whatever happens.
#[test]
fn no_output_shows_a_secret() {
    const SECRET: &str = "hunter2hunter2";
    let plan = |ports: Value| {
        json!({"bundle_id": "a", "workloads": [{"name": "web", "image": "i", "ports": ports,
            "pull_auth": {"username": "u", "password": {"env": "PASSWORD"}, "identity_token": SECRET},
            "env": {"A": SECRET, "B": {"env": "PASSWORD"}, "C": {"file": "password"}, "D": {"file": "missing"}}}]})
    };
    let world = World::new().with("PASSWORD", SECRET);
    world.write("password", SECRET);
    let (right, wrong) = (plan(json!([])).to_string(), plan(json!([{"number": 0}])).to_string());
    let torn = right.replace("]}]}", "]");
    for (name, text) in [("right.json", &right), ("wrong.json", &wrong), ("torn.json", &torn)] {
        world.write(name, text);
        for words in [
            vec!["render", name],
            vec!["render", name, "-o", "json", "-vvv"],
            vec!["apply", name, "-vvv"],
            vec!["apply", name, "-o", "json"],
            vec!["apply", name, "--kubeconfig", "/nonexistent", "-o", "yaml"],
        ] {
            let run = world.run(&words);
            let encoded = "aHVudGVyMmh1bnRlcjI";
            for output in [&run.out, &run.err] {
                assert!(!output.contains(SECRET) && !output.contains(encoded), "{words:?}: {output}");
            }
            assert!(!run.out.is_empty() || !run.err.is_empty(), "{words:?} says something");
        }
    }
}

#[test]
fn a_bad_plan_is_refused_with_fields_and_remedies() {
    let world = World::new();
    let plan = r#"{"bundle_id": "a", "workloads": [{"name": "My_DB", "image": "i", "ports": [{"number": 70000}]}]}"#;
    world.write("plan.json", plan);
    let run = world.run(&["render", "plan.json"]);
    run.says(2, &["error: ", "workloads[0].name", "name it \"my-db\"", "workloads[0].ports[0].number = 70000"]);
    let failure = world.run(&["render", "plan.json", "-o", "json"]).failure();
    assert_eq!(failure["code"], "VALID_INVALID");
    let fields: Vec<_> =
        failure["details"]["problems"].as_array().into_iter().flatten().map(|it| &it["field"]).collect();
    assert_eq!(fields, [&json!("workloads[0].name"), &json!("workloads[0].ports[0].number")]);
}

#[test]
fn a_plan_beyond_this_runtime_is_another_failure_than_a_bad_one() {
    let world = World::new();
    world.write(
        "plan.yaml",
        "bundle_id: a\nworkloads: [{name: web, image: i}]\nnetwork: {private: true, egress: {block_private: true}}\n",
    );
    world.run(&["render", "plan.yaml"]).says(4, &["network.egress", "PLAN_CAPABILITY_UNSUPPORTED"]);
}

#[test]
fn an_unknown_field_of_a_plan_is_named_by_its_path() {
    let world = World::new();
    world.write("plan.yaml", "bundle_id: a\nworkloads:\n- name: web\n  image: i\n  ports: [{nubmer: 80}]\n");
    world.run(&["render", "plan.yaml"]).says(2, &["workloads[0].ports[0].nubmer", "spelling"]);
}

#[test]
fn a_missing_variable_and_a_missing_file_are_told_by_their_fields() {
    let world = World::new();
    let env = json!({"A": {"env": "BLOG_DB_PASSWORD"}, "B": {"file": "db.password"}});
    let plan = json!({"bundle_id": "a", "workloads": [{"name": "web", "image": "i", "env": env}]}).to_string();
    world.write("plans/plan.json", &plan);
    let run = world.run(&["apply", "plans/plan.json"]);
    run.says(2, &["workloads[0].env[\"A\"]", "set the variable BLOG_DB_PASSWORD", "workloads[0].env[\"B\"]"]);
    run.says(2, &["plans/db.password"]);
}

#[test]
fn a_plan_comes_from_the_standard_input_too() {
    let world = World::new();
    let mut child = world.command(&["render", "-"]).stdin(Stdio::piped()).spawn().expect("the program starts");
    let mut input = child.stdin.take().expect("its input is a pipe");
    input.write_all(b"bundle_id: piped\nworkloads: [{name: web, image: i}]\n").expect("it reads");
    drop(input);
    ended(child.wait_with_output().expect("it ends")).says(0, &["pando-piped"]);
}

#[test]
fn a_plan_that_is_not_there_is_refused() {
    World::new().run(&["apply", "nowhere.json"]).says(2, &["nowhere.json cannot be read", "remedy: ", "VALID_INVALID"]);
}

#[test]
fn an_unknown_key_of_the_configuration_is_refused_and_nothing_is_contacted() {
    let run = World::new().run(&["observe", "a", "--set", "pod_cird=10.0.0.0/8"]);
    run.says(2, &["pod_cird", "is not a key of the configuration", "pod_cidr"]);
}

#[test]
fn ranges_that_are_missing_come_with_the_command_that_finds_them() {
    World::new().with("PANDO_CONFIG", "").run(&["observe", "a"]).says(2, &["pod_cidr", "service_cidr", "kubectl"]);
}

#[test]
fn a_configuration_that_is_not_there_is_refused() {
    let world = World::new().with("PANDO_CONFIG", "/nonexistent/pando.json");
    world.run(&["observe", "a"]).says(2, &["/nonexistent/pando.json cannot be read", "PANDO_CONFIG"]);
    // The flag wins over the variable.
    world.run(&["upstream", "a", "web", "80", "--config", &path("config.json")]).says(0, &[]);
}

#[test]
fn no_kubeconfig_at_all_is_a_cluster_that_cannot_be_reached() {
    let run = World::new().run(&["observe", "a"]);
    run.says(5, &["ADAPTER_UNAVAILABLE", "run inside the cluster, or set `kubeconfig`"]);
}

#[test]
fn a_kubeconfig_or_context_that_is_named_and_not_there_is_a_name_to_correct() {
    let world = World::new();
    world.run(&["observe", "a", "--kubeconfig", "/nonexistent"]).says(2, &["/nonexistent", "check that"]);
    world.write("kubeconfig", "contexts: [{name: here, context: {cluster: c, user: u}}]\n");
    let run = world.run(&["observe", "a", "--kubeconfig", "kubeconfig", "--context", "there"]);
    run.says(2, &["there", "it knows here"]);
    world.write("torn", "contexts: [");
    world.run(&["observe", "a", "--kubeconfig", "torn"]).says(2, &["torn"]);
}

#[test]
fn a_cluster_that_does_not_answer_is_told_as_such() {
    let world = World::new();
    // Nobody listens on port 1.
    world.write(
        ".kube/config",
        "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
         clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n",
    );
    world.run(&["observe", "a", "--timeout", "1s"]).says(5, &["ADAPTER_UNAVAILABLE"]);
}

#[test]
fn an_upstream_is_known_without_a_cluster() {
    let world = World::new();
    let run = world.run(&["upstream", "app_01HQ8ABC", "web", "8080"]);
    assert_eq!((run.code, run.out.as_str()), (0, "http://web.pando-app-01hq8abc.svc.cluster.local:8080\n"));
    let run = world.run(&["upstream", "a", "web", "80", "-o", "json", "--set", "cluster_domain=apps.example"]);
    assert_eq!(run.json(), json!({"url": "http://web.pando-a.svc.apps.example:80"}));
    world.run(&["upstream", "a", "Web", "0"]).says(2, &["workload = Web", "port = 0"]);
}

#[test]
fn data_is_not_destroyed_without_a_word() {
    let run = World::new().run(&["destroy", "a", "--keep-volumes=false"]);
    run.says(2, &["nothing was changed", "--yes"]);
}

#[test]
fn a_command_line_that_is_no_command_ends_with_2() {
    let world = World::new();
    for words in [
        vec!["frobnicate"],
        vec!["apply"],
        vec!["observe", ""],
        vec!["upstream", "a", "web", "65536"],
        vec!["observe", "a", "--timeout", "soon"],
        vec!["observe", "a", "--set", "novalue"],
    ] {
        assert_eq!(world.run(&words).code, 2, "{words:?}");
    }
}

#[test]
fn every_command_explains_itself_by_example() {
    let world = World::new();
    world.run(&["--help"]).says(0, &["Exit codes:", "130", "PANDO_CONFIG"]);
    for command in ["apply", "observe", "stop", "destroy", "upstream", "render", "schema", "completions"] {
        world.run(&[command, "--help"]).says(0, &["Examples:", &format!("pando-k8s {command}"), "Global options:"]);
    }
    world.run(&["completions", "bash"]).says(0, &["--keep-volumes", "complete -F"]);
}

/// Whether `value` has the form that `schema` tells, by as much of JSON Schema as the schemas here use: another keyword is a panic.
fn fits(root: &Value, schema: &Value, value: &Value) -> bool {
    let Some(keywords) = schema.as_object() else { return schema != &json!(false) };
    keywords.iter().all(|(keyword, wanted)| match keyword.as_str() {
        "$ref" => {
            let pointer =
                wanted.as_str().and_then(|reference| reference.strip_prefix('#')).expect("a reference within");
            fits(root, root.pointer(pointer).expect("it leads somewhere"), value)
        }
        "type" => {
            let types = wanted.as_array().cloned().unwrap_or_else(|| vec![wanted.clone()]);
            types.iter().any(|name| match name.as_str().expect("a name") {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "integer" => value.is_u64() || value.is_i64(),
                "null" => value.is_null(),
                other => panic!("type {other} is not looked at here"),
            })
        }
        "properties" => wanted
            .as_object()
            .expect("properties")
            .iter()
            .all(|(name, schema)| value.get(name).is_none_or(|value| fits(root, schema, value))),
        "additionalProperties" => {
            let known = |name: &str| schema["properties"].get(name).is_some();
            value.as_object().is_none_or(|it| it.iter().all(|(name, value)| known(name) || fits(root, wanted, value)))
        }
        "required" => {
            wanted.as_array().expect("names").iter().all(|name| value.get(name.as_str().unwrap_or("")).is_some())
        }
        "items" => value.as_array().is_none_or(|items| items.iter().all(|item| fits(root, wanted, item))),
        "anyOf" | "oneOf" => wanted.as_array().expect("forms").iter().any(|form| fits(root, form, value)),
        "enum" => wanted.as_array().expect("values").contains(value),
        "const" => wanted == value,
        "minimum" => value.as_f64().is_none_or(|number| number >= wanted.as_f64().unwrap_or(f64::NAN)),
        "maximum" => value.as_f64().is_none_or(|number| number <= wanted.as_f64().unwrap_or(f64::NAN)),
        "minLength" => value.as_str().is_none_or(|text| text.len() as u64 >= wanted.as_u64().unwrap_or(u64::MAX)),
        "$schema" | "$defs" | "title" | "description" | "default" | "examples" | "format" => true,
        other => panic!("{other} is not looked at here"),
    })
}

#[test]
fn the_examples_have_the_form_that_the_schemas_tell() {
    let schema = |document: &str| World::new().run(&["schema", document, "-o", "json"]).json();
    let (plan, config) = (schema("plan"), schema("config"));
    let mut seen = 0;
    for file in std::fs::read_dir(example("")).expect("there are examples").map(|file| file.expect("a file").path()) {
        let text = std::fs::read_to_string(&file).expect("it is text");
        let document: Value = serde_json::from_str(&text).expect("the examples are JSON");
        let schema = if file.ends_with("config.json") { &config } else { &plan };
        assert!(fits(schema, schema, &document), "{}", file.display());
        // And a field that there is not.
        let mut misspelt = document.clone();
        misspelt["replicas"] = json!(3);
        assert!(!fits(schema, schema, &misspelt), "{}", file.display());
        seen += 1;
    }
    assert!(seen >= 4, "the examples were found");
}

#[test]
fn a_schema_tells_a_wrong_plan_and_each_form_of_a_secret() {
    let run = World::new().with("KUBECONFIG", "/nonexistent").run(&["schema"]);
    run.says(0, &["\"$defs\"", "additionalProperties"]);
    assert!(!run.out.contains("[redacted]"), "no default is a secret's: {}", run.out);
    let schema = run.json();
    let plan = |change: Value| {
        let mut web = json!({"name": "web", "image": "i"});
        web.as_object_mut().expect("an object").extend(change.as_object().expect("fields").clone());
        json!({"bundle_id": "a", "workloads": [web]})
    };
    for (change, right) in [
        (json!({}), true),
        (json!({"env": {"A": "text", "B": {"env": "NAME"}, "C": {"file": "path"}}}), true),
        (json!({"pull_auth": {"username": "u", "password": {"file": "p"}}}), true),
        (json!({"ports": [{"number": 65535, "protocol": "udp"}]}), true),
        (json!({"env": {"A": 7}}), false),
        (json!({"env": {"A": {"vault": "x"}}}), false),
        (json!({"env": {"A": {"env": "X", "file": "y"}}}), false),
        (json!({"ports": [{"number": 65536}]}), false),
        (json!({"ports": [{"number": 80, "protocol": "sctp"}]}), false),
        (json!({"ports": [{"nubmer": 80}]}), false),
        (json!({"settings": {"run_as_user": -1}}), false),
        (json!({"name": null}), false),
    ] {
        assert_eq!(fits(&schema, &schema, &plan(change.clone())), right, "{change}");
    }
}

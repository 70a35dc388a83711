//! Services: types, addresses and node ports.
//!
//! A headless Service cannot become another type, save for ExternalName and back (tried on 1.34).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pando_cluster::Kind;
use serde_json::{Value, json};

use super::{default, default_text};
use crate::api::names;
use crate::api::refusal::FieldError;
use crate::store::Store;

type Errors = Vec<FieldError>;

const NODE_PORTS: std::ops::RangeInclusive<i32> = 30_000..=32_767;

pub(super) fn complete(service: &mut Service) {
    let spec = service.spec.get_or_insert_default();
    default_text(&mut spec.type_, "ClusterIP");
    default_text(&mut spec.session_affinity, "None");
    let kind = spec.type_.clone().unwrap_or_default();
    if kind != "ExternalName" {
        default_text(&mut spec.internal_traffic_policy, "Cluster");
        // Without a selector a headless Service may hold addresses of both families (tried on 1.34).
        let both = is_headless(spec) && has_no_selector(spec);
        let families: &[&str] = if both { &["IPv4", "IPv6"] } else { &["IPv4"] };
        default_text(&mut spec.ip_family_policy, if both { "RequireDualStack" } else { "SingleStack" });
        default(&mut spec.ip_families, families.iter().map(|it| (*it).to_owned()).collect());
    }
    let outside = spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty());
    if uses_node_ports(&kind) || (outside && kind == "ClusterIP") {
        default_text(&mut spec.external_traffic_policy, "Cluster");
    }
    if kind == "LoadBalancer" {
        default(&mut spec.allocate_load_balancer_node_ports, true);
    }
    for port in spec.ports.iter_mut().flatten() {
        default_text(&mut port.protocol, "TCP");
        match &port.target_port {
            None | Some(IntOrString::Int(0)) => port.target_port = Some(IntOrString::Int(port.port)),
            Some(IntOrString::String(name)) if name.is_empty() => port.target_port = Some(IntOrString::Int(port.port)),
            Some(_) => {}
        }
    }
    if spec.cluster_ips.as_ref().is_none_or(Vec::is_empty) && !address(spec).is_empty() {
        spec.cluster_ips = Some(vec![address(spec).to_owned()]);
    }
}

/// Takes over from `old` what a client may leave out or what its change of type makes meaningless.
pub(crate) fn keep_allocated(new: &mut Service, old: &Service) {
    let (Some(new), Some(old)) = (&mut new.spec, &old.spec) else { return };
    let (now, before) = (new.type_.clone().unwrap_or_default(), old.type_.clone().unwrap_or_default());
    let same_list = new.cluster_ips == old.cluster_ips;
    if new.cluster_ip != old.cluster_ip && same_list {
        // A client that knows one address only.
        new.cluster_ips = new.cluster_ip.clone().filter(|ip| !ip.is_empty()).map(|ip| vec![ip]);
    }
    let (has, had) = (now != "ExternalName", before != "ExternalName");
    if has && had {
        if address(new).is_empty() {
            new.cluster_ip.clone_from(&old.cluster_ip);
        }
        if new.cluster_ips.as_ref().is_none_or(Vec::is_empty) {
            new.cluster_ips.clone_from(&old.cluster_ips);
        }
    } else if had && !has {
        if new.cluster_ip == old.cluster_ip {
            (new.cluster_ip, new.cluster_ips) = (None, None);
        }
        (new.ip_families, new.ip_family_policy, new.internal_traffic_policy) = (None, None, None);
    }
    if uses_node_ports(&before) && !uses_node_ports(&now) {
        new.external_traffic_policy = None;
        new.allocate_load_balancer_node_ports = None;
        for port in new.ports.iter_mut().flatten() {
            let held = old.ports.iter().flatten().any(|it| it.node_port == port.node_port);
            port.node_port = port.node_port.filter(|_| !held);
        }
    } else if uses_node_ports(&before) && uses_node_ports(&now) {
        for port in new.ports.iter_mut().flatten().filter(|port| port.node_port.unwrap_or_default() == 0) {
            let same = |it: &&ServicePort| it.port == port.port && it.protocol == port.protocol;
            port.node_port = old.ports.iter().flatten().find(same).and_then(|it| it.node_port);
        }
    }
}

pub(super) fn check(service: &Service) -> Errors {
    let spec = service.spec.clone().unwrap_or_default();
    let kind = spec.type_.clone().unwrap_or_default();
    let mut errors = Errors::new();
    if !["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"].contains(&kind.as_str()) {
        let supported = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
        errors.push(FieldError::unsupported("spec.type", &kind, &supported));
    }
    check_address(&spec, &kind, &mut errors);
    if spec.ports.iter().flatten().next().is_none() && !is_headless(&spec) && kind != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    check_ports(&spec, &kind, &mut errors);
    errors.extend(names::labels("spec.selector", spec.selector.as_ref()));
    if !["ClientIP", "None"].contains(&spec.session_affinity.as_deref().unwrap_or_default()) {
        let given = spec.session_affinity.clone().unwrap_or_default();
        errors.push(FieldError::unsupported("spec.sessionAffinity", &given, &["ClientIP", "None"]));
    }
    for (index, ip) in spec.external_ips.iter().flatten().enumerate() {
        if ip.parse::<IpAddr>().is_err() {
            let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.push(FieldError::invalid(format!("spec.externalIPs[{index}]"), ip.as_str(), why));
        }
    }
    errors
}

fn check_address(spec: &ServiceSpec, kind: &str, errors: &mut Errors) {
    if kind == "ExternalName" {
        if spec.cluster_ips.as_ref().is_some_and(|ips| !ips.is_empty()) {
            errors.push(FieldError::forbidden("spec.clusterIPs", "may not be set for ExternalName services"));
        }
        match spec.external_name.as_deref().unwrap_or_default() {
            "" => errors.push(FieldError::required("spec.externalName", "")),
            name => {
                let name = name.strip_suffix('.').unwrap_or(name);
                errors.extend(names::at("spec.externalName", name, names::dns_subdomain));
            }
        }
    } else if is_headless(spec) && uses_node_ports(kind) {
        let why = format!("may not be set to 'None' for {kind} services");
        errors.push(FieldError::invalid("spec.clusterIPs[0]", "None", why));
    }
    let first = spec.cluster_ips.iter().flatten().next();
    if kind != "ExternalName"
        && let Some(first) = first.filter(|first| *first != "None" && first.parse::<IpAddr>().is_err())
    {
        let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        errors.push(FieldError::invalid("spec.clusterIPs[0]", first.as_str(), why));
    }
    if let Some(first) = first
        && first != address(spec)
    {
        let value = json!(spec.cluster_ips);
        errors.push(FieldError::invalid("spec.clusterIPs", value, "first value must match `clusterIP`"));
    }
}

fn check_ports(spec: &ServiceSpec, kind: &str, errors: &mut Errors) {
    let ports = spec.ports.as_deref().unwrap_or_default();
    let (mut taken, mut heard) = (BTreeSet::new(), BTreeSet::new());
    for (index, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        match port.name.as_deref().unwrap_or_default() {
            "" if ports.len() > 1 => errors.push(FieldError::required(format!("{path}.name"), "")),
            "" => {}
            name => {
                errors.extend(names::at(&format!("{path}.name"), name, names::dns_label));
                if !taken.insert(name) {
                    errors.push(FieldError::duplicate(format!("{path}.name"), name));
                }
            }
        }
        errors.extend(numbers(&format!("{path}.port"), port.port));
        let protocol = port.protocol.as_deref().unwrap_or_default();
        if !["SCTP", "TCP", "UDP"].contains(&protocol) {
            let supported = ["SCTP", "TCP", "UDP"];
            errors.push(FieldError::unsupported(format!("{path}.protocol"), protocol, &supported));
        }
        match &port.target_port {
            Some(IntOrString::Int(number)) => errors.extend(numbers(&format!("{path}.targetPort"), *number)),
            Some(IntOrString::String(name)) => {
                errors.extend(names::at(&format!("{path}.targetPort"), name, names::port_name));
            }
            None => {}
        }
        if port.node_port.unwrap_or_default() != 0 && !uses_node_ports(kind) {
            let why = format!("may not be used when `type` is '{kind}'");
            errors.push(FieldError::forbidden(format!("{path}.nodePort"), why));
        }
        if !heard.insert((protocol, port.port)) {
            // Kubernetes prints its own struct.
            let number = port.port;
            let text = format!(
                "Duplicate value: {{\"Name\":\"\",\"Protocol\":{protocol:?},\"AppProtocol\":null,\"Port\":{number},\"TargetPort\":0,\"NodePort\":0}}"
            );
            errors.push(FieldError::of("FieldValueDuplicate", &path, text));
        }
    }
}

pub(super) fn check_update(new: &Service, old: &Service) -> Errors {
    let (Some(new), Some(old)) = (&new.spec, &old.spec) else { return vec![] };
    let external = |spec: &ServiceSpec| spec.type_.as_deref() == Some("ExternalName");
    if external(new) || external(old) || new.cluster_ips == old.cluster_ips {
        return vec![];
    }
    // The type of a headless Service is judged first: then that is what is wrong.
    if is_headless(new) && uses_node_ports(new.type_.as_deref().unwrap_or_default()) {
        return vec![];
    }
    vec![FieldError::invalid("spec.clusterIPs[0]", json!(new.cluster_ips), "may not change once set")]
}

/// Gives a Service the address and the node ports that it asks for.
pub(crate) fn allocate(store: &Store, range: IpNet, service: &mut Service) -> Result<(), Errors> {
    let own = service.metadata.uid.clone();
    let others: Vec<_> = store
        .all(Kind::Service)
        .map(|(_, other)| other)
        .filter(|other| own.is_none() || other["metadata"]["uid"].as_str() != own.as_deref())
        .collect();
    let spec = service.spec.get_or_insert_default();
    let kind = spec.type_.clone().unwrap_or_default();
    refuse_dual_stack(spec)?;
    if kind != "ExternalName" {
        let taken: BTreeSet<_> = others.iter().filter_map(|it| it["spec"]["clusterIP"].as_str()).collect();
        match address(spec) {
            "None" => {}
            "" => {
                let free = range.hosts().skip(1).map(|ip| ip.to_string()).find(|ip| !taken.contains(ip.as_str()));
                spec.cluster_ips = free.clone().map(|ip| vec![ip]);
                spec.cluster_ip = free;
            }
            asked => refuse_address(range, &taken, asked).map_err(|error| vec![error])?,
        }
    }
    let wants_ports =
        kind == "NodePort" || (kind == "LoadBalancer" && spec.allocate_load_balancer_node_ports.unwrap_or(true));
    if wants_ports {
        allocate_node_ports(spec, &others).map_err(|error| vec![error])?;
    }
    Ok(())
}

/// This cluster has IPv4 alone; only a headless Service without selector may ask for more.
fn refuse_dual_stack(spec: &ServiceSpec) -> Result<(), Errors> {
    let both = spec.ip_family_policy.as_deref() == Some("RequireDualStack");
    if !both || (is_headless(spec) && has_no_selector(spec)) {
        return Ok(());
    }
    let why = "this cluster is not configured for dual-stack services";
    let mut errors = vec![FieldError::invalid("spec.ipFamilyPolicy", "RequireDualStack", why)];
    let foreign = spec.ip_families.iter().flatten().position(|family| family == "IPv6");
    errors.extend(foreign.map(|index| {
        FieldError::invalid(format!("spec.ipFamilies[{index}]"), "IPv6", "not configured on this cluster")
    }));
    Err(errors)
}

fn refuse_address(range: IpNet, taken: &BTreeSet<&str>, asked: &str) -> Result<(), FieldError> {
    let refuse = |why: String| {
        Err(FieldError::invalid("spec.clusterIPs", json!([asked]), format!("failed to allocate IP {asked}: {why}")))
    };
    if !asked.parse::<IpAddr>().is_ok_and(|ip| range.contains(&ip)) {
        return refuse("the provided network does not match the current range".to_owned());
    }
    if taken.contains(asked) {
        return refuse("provided IP is already allocated".to_owned());
    }
    Ok(())
}

fn allocate_node_ports(spec: &mut ServiceSpec, others: &[&Value]) -> Result<(), FieldError> {
    let held = |port: &Value| port["nodePort"].as_i64().and_then(|number| i32::try_from(number).ok());
    let mut taken: BTreeSet<i32> =
        others.iter().filter_map(|it| it["spec"]["ports"].as_array()).flatten().filter_map(held).collect();
    for (index, port) in spec.ports.iter_mut().flatten().enumerate() {
        let path = format!("spec.ports[{index}].nodePort");
        match port.node_port.unwrap_or_default() {
            0 => port.node_port = NODE_PORTS.clone().find(|number| !taken.contains(number)),
            asked if !NODE_PORTS.contains(&asked) => {
                let why = "provided port is not in the valid range. The range of valid ports is 30000-32767";
                return Err(FieldError::invalid(path, asked, why));
            }
            asked if taken.contains(&asked) => {
                return Err(FieldError::invalid(path, asked, "provided port is already allocated"));
            }
            _ => {}
        }
        taken.extend(port.node_port);
    }
    Ok(())
}

fn uses_node_ports(kind: &str) -> bool {
    matches!(kind, "NodePort" | "LoadBalancer")
}

fn is_headless(spec: &ServiceSpec) -> bool {
    address(spec) == "None" || spec.cluster_ips.iter().flatten().next().is_some_and(|ip| ip == "None")
}

fn has_no_selector(spec: &ServiceSpec) -> bool {
    spec.selector.as_ref().is_none_or(BTreeMap::is_empty)
}

fn address(spec: &ServiceSpec) -> &str {
    spec.cluster_ip.as_deref().unwrap_or_default()
}

fn numbers(path: &str, number: i32) -> Errors {
    names::port_number(number).iter().map(|why| FieldError::invalid(path, number, why)).collect()
}

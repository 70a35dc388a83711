//! What keys say together: whether ranges are apart, and whether the families of addresses meet.

use ipnet::IpNet;

use super::keys::{API_BURST, API_QPS, POD_CIDR, SERVICE_CIDR};
use super::values::Fault;

/// Pods and Services share no address: where they do, the cluster's own routing cannot work.
pub(super) fn ranges_apart(pods: &[IpNet], services: &[IpNet]) -> Vec<Fault> {
    let overlaps = |pod: &IpNet, service: &IpNet| pod.contains(service) || service.contains(pod);
    let pairs = services.iter().flat_map(|service| pods.iter().map(move |pod| (service, pod)));
    pairs
        .filter(|(service, pod)| overlaps(pod, service))
        .map(|(service, pod)| {
            let problem = match () {
                () if pod == service => format!("is {}'s range too", POD_CIDR.name),
                () if pod.contains(service) => format!("lies within {pod} of {}", POD_CIDR.name),
                () => format!("holds {pod} of {}", POD_CIDR.name),
            };
            let remedy = format!(
                "write the range of the Services alone, and in {} that of the pods alone; {}",
                POD_CIDR.name,
                hint(SERVICE_CIDR.name)
            );
            Fault { value: service.to_string(), problem, remedy }
        })
        .collect()
}

/// One family at least has both ranges, or no app could reach anything outside (S-24).
///
/// A family with one of them is fine: there are clusters whose pods have IPv6 addresses and whose Services have none.
pub(super) fn families_meet(pods: &[IpNet], services: &[IpNet]) -> Option<Fault> {
    let has = |ranges: &[IpNet], v6: bool| ranges.iter().any(|range| range.addr().is_ipv6() == v6);
    let meet = [false, true].into_iter().any(|v6| has(pods, v6) && has(services, v6));
    if pods.is_empty() || services.is_empty() || meet {
        return None;
    }
    let (family, other) = if has(services, true) { ("IPv6", "IPv4") } else { ("IPv4", "IPv6") };
    Some(Fault {
        value: written(services),
        problem: format!("is {family} alone, and {} is {other} alone ({})", POD_CIDR.name, written(pods)),
        remedy: format!(
            "write the {other} range of the Services beside it, or the {family} range of the pods in {}: apps reach the outside only by \
             a family that has both; {}",
            POD_CIDR.name,
            hint(SERVICE_CIDR.name)
        ),
    })
}

/// As many calls at once as in a second, or the rate could not be had.
pub(super) fn burst_carries_rate(qps: u32, burst: u32) -> Option<Fault> {
    (burst < qps).then(|| Fault {
        value: burst.to_string(),
        problem: format!("is less than {} ({qps})", API_QPS.name),
        remedy: format!("write {qps} or more, or leave {} out", API_BURST.name),
    })
}

/// How an operator finds a range of the cluster.
pub(super) fn hint(key: &str) -> &'static str {
    if key == SERVICE_CIDR.name {
        "`kubectl get servicecidrs` shows the Services' range from Kubernetes 1.33 on; before, the refusal of `kubectl create service \
         clusterip x --tcp=80 --clusterip=192.0.2.1 --dry-run=server` names it"
    } else {
        "`kubectl get nodes -o custom-columns=NODE:.metadata.name,PODS:.spec.podCIDRs` shows each node's part of the pods' range; \
         where that is none, the range holds the addresses that `kubectl get pods -A -o wide` shows"
    }
}

fn written(ranges: &[IpNet]) -> String {
    ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::values::ranges;
    use super::*;

    fn of(text: &str) -> Vec<IpNet> {
        ranges(text).expect("ranges")
    }

    #[test]
    fn ranges_that_share_an_address_are_told_pair_by_pair() {
        for (pods, services, overlaps) in [
            ("10.244.0.0/16", "10.96.0.0/12", 0),
            ("10.0.0.0/8", "10.96.0.0/12", 1),
            ("10.96.1.0/24", "10.96.0.0/12", 1),
            ("10.1.0.0/16", "10.1.0.0/16", 1),
            ("10.0.0.0/8,fd00::/8", "10.96.0.0/12,fd00:1::/108", 2),
            ("10.0.0.0/8", "fd00::/108", 0),
        ] {
            assert_eq!(ranges_apart(&of(pods), &of(services)).len(), overlaps, "{pods} and {services}");
        }
    }

    #[test]
    fn one_family_must_have_both_ranges() {
        for (pods, services, refused) in [
            ("10.244.0.0/16", "10.96.0.0/12", false),
            ("10.244.0.0/16,fd00:1::/56", "10.96.0.0/12", false),
            ("10.244.0.0/16", "10.96.0.0/12,fd00:2::/108", false),
            ("10.244.0.0/16", "fd00:2::/108", true),
            ("fd00:1::/56", "10.96.0.0/12", true),
        ] {
            assert_eq!(families_meet(&of(pods), &of(services)).is_some(), refused, "{pods} and {services}");
        }
    }
}

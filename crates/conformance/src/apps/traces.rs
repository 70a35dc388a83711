//! Where a text can be found.

use k8s_openapi::ByteString;
use pando_cluster::{Kind, ListRequest, ObjectKey, Scope, Scoped};

use super::App;

/// The objects of the app that hold `text`, plain or as Kubernetes writes bytes; its namespace is one of them.
pub(crate) async fn places_that_hold(app: &App<'_>, text: &str) -> Vec<ObjectKey> {
    let encoded = serde_json::to_value(ByteString(text.as_bytes().to_vec())).expect("bytes can be written");
    let encoded = encoded.as_str().expect("as a text").trim_end_matches('=').to_owned();
    let mut objects = Vec::new();
    for kind in Kind::ALL.iter().filter(|kind| kind.scoped() == Scoped::Namespace) {
        let request = ListRequest::of(*kind, Scope::Namespace(app.namespace.clone()));
        objects.extend(app.bed.admin().list(&request).await.expect("a list").items);
    }
    objects.extend(app.bed.admin().get(&ObjectKey::cluster(Kind::Namespace, &*app.namespace)).await.expect("a read"));
    let holds = |json: String| json.contains(text) || json.contains(&encoded);
    let places = objects.iter().filter(|object| holds(object.to_json().expect("objects are JSON").to_string()));
    places.map(pando_cluster::Object::key).collect()
}

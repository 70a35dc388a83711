//! Telling followers of one namespace's pods what the view is told.

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use k8s_openapi::api::core::v1::Pod;
use pando_cluster::{ClusterError, ObjectKey, Resource, Told};

use super::kept::{Heard, Kept};

/// Those who follow pods.
#[derive(Debug, Default)]
pub(super) struct Feeds(Vec<Feed>);

#[derive(Debug)]
struct Feed {
    namespace: String,
    /// How many lists had begun when it was subscribed to.
    lists: u64,
    sender: UnboundedSender<Told>,
}

impl Feeds {
    /// What happens to the namespace's pods from now on. Of the view's lists only those that begin later are told: whoever
    /// lists the pods after this knows more than an earlier list does, and every change after that list is told anyway.
    pub(super) fn subscribe(&mut self, namespace: &str, lists_begun: u64) -> UnboundedReceiver<Told> {
        let (sender, receiver) = unbounded();
        self.0.push(Feed { namespace: namespace.to_owned(), lists: lists_begun, sender });
        receiver
    }

    /// Passes on what the view is about to take in; `list` is the number of the newest list that has begun.
    pub(super) fn pass_on(&mut self, told: &Told<Heard>, list: u64) {
        self.0.retain(|feed| !feed.sender.is_closed());
        for feed in &self.0 {
            if let Some(told) = feed.of(told, list) {
                // One that closed just now is forgotten the next time.
                let _ = feed.sender.unbounded_send(told);
            }
        }
    }
}

impl Feed {
    /// What this follower is told of it.
    fn of(&self, told: &Told<Heard>, list: u64) -> Option<Told> {
        let pod = |kept: &Kept| kept.read::<Pod>().map(Pod::into_object);
        Some(match told {
            Told::Listing => Told::Listing,
            Told::All(_) if list <= self.lists => return None,
            Told::All(all) => {
                let here = all.iter().filter(|heard| self.is_about(&heard.key));
                Told::All(here.filter_map(|heard| pod(&heard.kept)).collect())
            }
            Told::Is(heard) if self.is_about(&heard.key) => Told::Is(pod(&heard.kept)?),
            Told::Gone(heard) if self.is_about(&heard.key) => Told::Gone(pod(&heard.kept)?),
            Told::Is(_) | Told::Gone(_) => return None,
            Told::Fresh => Told::Fresh,
            Told::Broken(error) => {
                Told::Broken(ClusterError::new(error.verb, (*error.subject).clone(), error.failure.clone()))
            }
        })
    }

    fn is_about(&self, key: &ObjectKey) -> bool {
        key.namespace.as_deref() == Some(&self.namespace)
    }
}

//! Puts keys into a kind's queue from outside of the watches: Slurm's poller, the actor that pushes configuration.

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Key;

/// The way into one kind's queue. A key already waiting is not added again.
#[derive(Debug, Clone)]
pub struct Trigger(UnboundedSender<Key>);

/// The queue's end of a [`Trigger`].
pub type Inbox = UnboundedReceiver<Key>;

impl Trigger {
    pub fn new() -> (Self, Inbox) {
        let (sender, inbox) = unbounded_channel();
        (Self(sender), inbox)
    }

    /// Of a kind that does not run: what is added is forgotten.
    pub fn nowhere() -> Self {
        Self::new().0
    }

    /// Looks at this object soon. While the kind does not run (a standby, or the end of the process) it is forgotten:
    /// a kind that starts looks at every object anyway.
    pub fn add(&self, key: Key) {
        drop(self.0.send(key));
    }
}

/// One per kind, so that kinds can wake each other.
#[derive(Debug, Clone)]
pub struct Triggers {
    pub controller: Trigger,
    pub node_set: Trigger,
    pub rest_api: Trigger,
    pub partition: Trigger,
    pub accounting: Trigger,
    pub token: Trigger,
    pub login_set: Trigger,
}

/// The queues' ends of [`Triggers`].
#[derive(Debug)]
pub struct Inboxes {
    pub controller: Inbox,
    pub node_set: Inbox,
    pub rest_api: Inbox,
    pub partition: Inbox,
    pub accounting: Inbox,
    pub token: Inbox,
    pub login_set: Inbox,
}

impl Triggers {
    pub fn new() -> (Self, Inboxes) {
        let (controller, controller_inbox) = Trigger::new();
        let (node_set, node_set_inbox) = Trigger::new();
        let (rest_api, rest_api_inbox) = Trigger::new();
        let (partition, partition_inbox) = Trigger::new();
        let (accounting, accounting_inbox) = Trigger::new();
        let (token, token_inbox) = Trigger::new();
        let (login_set, login_set_inbox) = Trigger::new();
        (
            Self {
                controller,
                node_set,
                rest_api,
                partition,
                accounting,
                token,
                login_set,
            },
            Inboxes {
                controller: controller_inbox,
                node_set: node_set_inbox,
                rest_api: rest_api_inbox,
                partition: partition_inbox,
                accounting: accounting_inbox,
                token: token_inbox,
                login_set: login_set_inbox,
            },
        )
    }

    /// That of a kind, by its [`NAME`](super::Reconciler::NAME).
    pub(super) fn of(&self, name: &str) -> Trigger {
        let found = match name {
            "controller" => &self.controller,
            "nodeset" => &self.node_set,
            "restapi" => &self.rest_api,
            "partition" => &self.partition,
            "accounting" => &self.accounting,
            "token" => &self.token,
            "loginset" => &self.login_set,
            _ => return Trigger::nowhere(),
        };
        found.clone()
    }

    /// For tests of a kind alone.
    pub fn nowhere() -> Self {
        Self::new().0
    }
}

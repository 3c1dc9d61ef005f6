//! The production operators: two processes that elect a leader.

use operator::{
    cli::assemble,
    defaults::{Defaults, Images},
};
use runtime::{Clients, Contender, Memories, Options};
use tokio::time::sleep;

use super::{
    World,
    files::FileSystem,
    machine::{Clock, Life, Simulated},
    objects::NAMESPACE,
};

/// The kubelet restarts the container of an operator that has ended.
const RESTART: std::time::Duration = std::time::Duration::from_secs(3);

/// One operator's pod.
#[derive(Debug, Clone, Default)]
pub struct Operator {
    pub clock: Clock,
    /// Of its current process.
    pub life: Life,
    pub memories: Memories,
}

impl World {
    /// Starts an operator, and starts it again whenever it ends.
    pub(super) fn start_operator(&self, name: &'static str) {
        let world = self.clone();
        self.operators
            .lock()
            .unwrap()
            .insert(name.to_owned(), Operator::default());
        tokio::spawn(async move {
            loop {
                world.run_operator(name).await;
                sleep(RESTART).await;
            }
        });
    }

    async fn run_operator(&self, name: &'static str) {
        let life = Life::default();
        let clock = {
            let mut operators = self.operators.lock().unwrap();
            let operator = operators.get_mut(name).unwrap();
            operator.life = life.clone();
            operator.clock.clone()
        };
        let machine = Simulated {
            name: name.to_owned(),
            address: self.next_address(),
            clock,
            random: self.random.fork(),
            files: FileSystem::default(),
            network: self.network.clone(),
            life: life.clone(),
            programs: None,
            change: "file of an operator",
        };
        self.network.place(&machine.address, name);
        let host = machine.host();
        let options = Options {
            lease: Some(Contender {
                namespace: NAMESPACE.to_owned(),
                name: "slurm-operator".to_owned(),
                identity: format!("{name}_{:016x}", host.random().u64()),
            }),
            instance: name.to_owned(),
            ..Options::default()
        };
        let clients = Clients::same(self.access.client(name, &life));
        let defaults = Defaults {
            images: Images::default(),
            ..Defaults::default()
        };
        let operator = assemble(clients, options, defaults, host);
        if let Some(running) = self.operators.lock().unwrap().get_mut(name) {
            running.memories = operator.context().memories.clone();
        }
        let world = self.clone();
        let run = async move {
            if let Err(error) = Box::pin(operator.run(std::future::pending())).await {
                world.tell(format!("{name} exits: {error:#}"));
            }
        };
        self.tell(format!("{name} starts"));
        let task = host::Machine::spawn(&machine, "operator", Box::pin(run));
        let _ = task.await;
        life.kill();
    }
}

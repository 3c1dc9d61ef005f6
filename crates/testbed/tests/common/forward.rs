//! `kubectl port-forward`.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use testbed::harness::Namespace;

/// A forwarded port of this machine, open until this is dropped.
pub struct Forward {
    kubectl: Child,
    pub address: String,
}

impl Forward {
    pub fn open(namespace: &Namespace, to: &str, port: u16) -> Self {
        let mut kubectl = namespace
            .kubectl(&["port-forward", to, &format!(":{port}")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut lines = BufReader::new(kubectl.stdout.as_mut().unwrap());
        lines.read_line(&mut said).unwrap();
        let address = said.split(' ').find(|word| word.starts_with("127.0.0.1:")).unwrap();
        Self {
            address: address.to_owned(),
            kubectl,
        }
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

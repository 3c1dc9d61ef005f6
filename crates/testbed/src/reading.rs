//! Reads objects over a persistent connection. `kubectl get` returns the same with fifty times the work, and tests poll
//! several times a second. Requests that are not supported here go to kubectl.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::cluster::Cluster;
use crate::paths::Layout;

/// Kinds by their singular name in kubectl, with their API path and the prefix of `-o name`.
const KINDS: [(&str, &str, &str); 10] = [
    ("pod", "api/v1", "pod"),
    ("configmap", "api/v1", "configmap"),
    ("secret", "api/v1", "secret"),
    ("service", "api/v1", "service"),
    ("statefulset", "apis/apps/v1", "statefulset.apps"),
    ("deployment", "apis/apps/v1", "deployment.apps"),
    (
        "controller",
        "apis/slinky.slurm.net/v1beta1",
        "controller.slinky.slurm.net",
    ),
    ("nodeset", "apis/slinky.slurm.net/v1beta1", "nodeset.slinky.slurm.net"),
    ("loginset", "apis/slinky.slurm.net/v1beta1", "loginset.slinky.slurm.net"),
    (
        "partition",
        "apis/slinky.slurm.net/v1alpha1",
        "partition.slinky.slurm.net",
    ),
];

/// A supported request of `kubectl get`.
#[derive(Debug, PartialEq)]
pub(crate) struct Question<'a> {
    address: String,
    /// Prefix of a name with `-o name`.
    kind: &'static str,
    output: Output<'a>,
}

#[derive(Debug, PartialEq)]
enum Output<'a> {
    Json,
    Name,
    /// Text with paths in braces.
    Template(&'a str),
}

impl<'a> Question<'a> {
    pub(crate) fn parse(namespace: &str, arguments: &[&'a str]) -> Option<Self> {
        let (["get"], mut rest) = arguments.split_at_checked(1)? else {
            return None;
        };
        let mut names = Vec::new();
        let (mut output, mut selector) = (None, None);
        loop {
            rest = match rest {
                [] => break,
                ["-o", how, rest @ ..] => {
                    output = Some(Output::parse(how)?);
                    rest
                }
                ["-l", which, rest @ ..] => {
                    selector = Some(*which);
                    rest
                }
                [flag, ..] if flag.starts_with('-') => return None,
                [name, rest @ ..] => {
                    names.extend(name.split('/'));
                    rest
                }
            };
        }
        let (kind, name) = match names.as_slice() {
            [kind] => (*kind, None),
            [kind, name] => (*kind, Some(*name)),
            _ => return None,
        };
        let kind = kind.split_once('.').map_or(kind, |(kind, _)| kind);
        let (singular, place, shown) = KINDS
            .into_iter()
            .find(|(singular, ..)| kind.strip_suffix('s').unwrap_or(kind) == *singular)?;
        let mut address = format!("/{place}/namespaces/{namespace}/{singular}s");
        match (name, selector) {
            (Some(name), None) => write!(address, "/{name}").ok()?,
            (None, Some(selector)) => write!(address, "?labelSelector={}", escaped(selector)).ok()?,
            (None, None) => {}
            (Some(_), Some(_)) => return None,
        }
        let output = output?;
        // kubectl adds the kind to the items of a list.
        (name.is_some() || output != Output::Json).then_some(Self {
            address,
            kind: shown,
            output,
        })
    }

    pub(crate) fn ask(&self, cluster: &Cluster) -> Result<String> {
        let client = client(&cluster.layout)?;
        let request = http::Request::get(&self.address).body(Vec::new())?;
        let answer = runtime()?.block_on(client.request::<Value>(request));
        let object = answer.map_err(|error| match error {
            kube::Error::Api(status) => anyhow!("Error from server ({}): {}", status.reason, status.message),
            other => other.into(),
        })?;
        Ok(self.shown(&object))
    }

    fn shown(&self, object: &Value) -> String {
        match self.output {
            Output::Json => object.to_string(),
            Output::Template(template) => filled(template, object),
            Output::Name => {
                let single = std::slice::from_ref(object);
                let items = object.get("items").and_then(Value::as_array);
                let objects = items.map_or(single, Vec::as_slice);
                let name = |object: &Value| format!("{}/{}\n", self.kind, filled("{.metadata.name}", object));
                objects.iter().map(name).collect()
            }
        }
    }
}

impl<'a> Output<'a> {
    fn parse(how: &'a str) -> Option<Self> {
        match how {
            "json" => Some(Self::Json),
            "name" => Some(Self::Name),
            _ => {
                let template = how.strip_prefix("jsonpath=")?;
                // No loops, and no text in quotes.
                let simple = template.split('{').skip(1).all(|part| part.starts_with('.'));
                simple.then_some(Self::Template(template))
            }
        }
    }
}

/// Escapes the characters of label selectors that are special in a query.
fn escaped(selector: &str) -> String {
    selector.replace('=', "%3D").replace(',', "%2C")
}

fn filled(template: &str, object: &Value) -> String {
    let mut parts = template.split('{');
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (path, after) = part.split_once('}').unwrap_or((part, ""));
        shown += &found(object, path).map(text).collect::<Vec<_>>().join(" ");
        shown += after;
    }
    shown
}

/// Evaluates a JSONPath of `.name`, `[0]`, `[*]` and `[?(@.name=="value")]`.
fn found<'a>(object: &'a Value, path: &str) -> Box<dyn Iterator<Item = &'a Value> + 'a> {
    let Some((step, rest)) = first_step(path) else {
        return Box::new(std::iter::once(object));
    };
    let next: Vec<&Value> = match step {
        Step::Name(name) => object.get(name).into_iter().collect(),
        Step::Index(index) => object.get(index).into_iter().collect(),
        Step::All => object.as_array().into_iter().flatten().collect(),
        Step::Where(name, value) => {
            let matches = |item: &&Value| item.get(&name).is_some_and(|found| text(found) == value);
            object.as_array().into_iter().flatten().filter(matches).collect()
        }
    };
    let rest = rest.to_owned();
    Box::new(next.into_iter().flat_map(move |value| found(value, &rest)))
}

enum Step {
    Name(String),
    Index(usize),
    All,
    Where(String, String),
}

fn first_step(path: &str) -> Option<(Step, &str)> {
    if let Some(inner) = path.strip_prefix('[') {
        let (inner, rest) = inner.split_once(']')?;
        let condition = inner.strip_prefix("?(@.").and_then(|inner| inner.strip_suffix(')'));
        let step = match condition.and_then(|condition| condition.split_once("==")) {
            Some((name, value)) => Step::Where(name.to_owned(), value.trim_matches('"').to_owned()),
            None if inner == "*" => Step::All,
            None => Step::Index(inner.parse().ok()?),
        };
        return Some((step, rest));
    }
    let path = path.strip_prefix('.')?;
    let mut before = ' ';
    let end = path.find(|character| {
        let ends = matches!(character, '.' | '[') && before != '\\';
        before = character;
        ends
    });
    let (name, rest) = path.split_at(end.unwrap_or(path.len()));
    Some((Step::Name(name.replace('\\', "")), rest))
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.map_err(|error| error.to_string())
    });
    made.as_ref().map_err(|error| anyhow!("no runtime: {error}"))
}

fn client(layout: &Layout) -> Result<Client> {
    static CLIENTS: Mutex<BTreeMap<String, Client>> = Mutex::new(BTreeMap::new());
    let clients = || CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    // A recreated cluster has new certificates.
    let kubeconfig = std::fs::read_to_string(layout.kubeconfig()).context("the cluster is not there")?;
    if let Some(client) = clients().get(&kubeconfig) {
        return Ok(client.clone());
    }
    let client = runtime()?.block_on(async {
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(Kubeconfig::from_yaml(&kubeconfig)?, &options).await?;
        config.read_timeout = Some(Duration::from_secs(30));
        anyhow::Ok(Client::try_from(config)?)
    })?;
    clients().insert(kubeconfig, client.clone());
    Ok(client)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse<'a>(arguments: &[&'a str]) -> Option<Question<'a>> {
        Question::parse("here", arguments)
    }

    #[test]
    fn one_object_is_requested_by_either_form_of_its_name() {
        let expected = Question {
            address: "/api/v1/namespaces/here/pods/one".into(),
            kind: "pod",
            output: Output::Template("{.metadata.uid}"),
        };
        for named in [&["pod/one"][..], &["pod", "one"], &["pods", "one"]] {
            let arguments = [&["get"], named, &["-o", "jsonpath={.metadata.uid}"]].concat();
            assert_eq!(parse(&arguments).as_ref(), Some(&expected), "{arguments:?}");
        }
        let ours = parse(&["get", "partition.slinky.slurm.net/both", "-o", "json"]).unwrap();
        assert_eq!(
            ours.address,
            "/apis/slinky.slurm.net/v1alpha1/namespaces/here/partitions/both"
        );
    }

    #[test]
    fn a_list_is_requested_by_its_labels() {
        let asked = parse(&["get", "pods", "-l", "a/b=c,d=e", "-o", "name"]).unwrap();
        assert_eq!(
            asked.address,
            "/api/v1/namespaces/here/pods?labelSelector=a/b%3Dc%2Cd%3De"
        );
        let list = json!({ "items": [{ "metadata": { "name": "x" } }, { "metadata": { "name": "y" } }] });
        assert_eq!(asked.shown(&list), "pod/x\npod/y\n");
        assert_eq!(asked.shown(&json!({ "items": [] })), "");
    }

    #[test]
    fn everything_else_is_left_to_kubectl() {
        let others: [&[&str]; 8] = [
            &["apply", "-f", "-"],
            &["get", "pods", "-o", "json"],
            &["get", "pods,services", "-o", "name"],
            &["get", "nodes", "-o", "name"],
            &["get", "pods", "--all-namespaces", "-o", "name"],
            &["get", "pods", "-o", "wide"],
            &["get", "pods"],
            &["get", "pods", "-o", "jsonpath={range .items[*]}{.metadata.name}{end}"],
        ];
        for arguments in others {
            assert_eq!(parse(arguments), None, "{arguments:?}");
        }
    }

    #[test]
    fn paths_are_evaluated_like_in_kubectl() {
        let object = json!({
            "status": {
                "conditions": [{ "type": "Ready", "status": "True" }, { "type": "Other", "status": "False" }],
                "counts": [1, 2],
                "by-name": { "a.b/c": "x" },
            },
        });
        let cases = [
            (".status.conditions[?(@.type==\"Other\")].status", "False"),
            (".status.conditions[?(@.type==\"None\")].status", ""),
            (".status.conditions[*].status", "True False"),
            (".status.counts[1]", "2"),
            (".status.counts", "[1,2]"),
            (".status.by-name.a\\.b/c", "x"),
            (".status.missing.more", ""),
        ];
        for (path, expected) in cases {
            assert_eq!(filled(&format!("{{{path}}}"), &object), expected, "{path}");
        }
        assert_eq!(filled("{.status.counts[0]}, {.status.counts[1]}!", &object), "1, 2!");
    }
}

//! Requests and responses of the API server: `AdmissionReview`, in the version in which it was sent.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What the API server asks.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    uid: String,
    /// `CREATE` or `UPDATE`.
    pub operation: String,
    /// The namespace of the object.
    #[serde(default)]
    pub namespace: String,
    /// The object as it is to be stored.
    #[serde(default)]
    pub object: Value,
    /// The object as it is stored now; null for a new one.
    #[serde(default)]
    pub old_object: Value,
    /// Nothing is to be written for this request.
    #[serde(default)]
    pub dry_run: Option<bool>,
}

impl Request {
    /// Whether the object was there before.
    pub fn is_update(&self) -> bool {
        self.operation == "UPDATE"
    }
}

/// The answer: an object with errors is rejected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Why the request is rejected.
    pub errors: Vec<String>,
    /// What its author should know all the same.
    pub warnings: Vec<String>,
}

impl Verdict {
    /// Accepts the request with a warning.
    pub fn warn(warning: impl Into<String>) -> Self {
        Self {
            warnings: vec![warning.into()],
            ..Self::default()
        }
    }

    /// Rejects the request.
    pub fn reject(error: impl Into<String>) -> Self {
        Self {
            errors: vec![error.into()],
            ..Self::default()
        }
    }
}

/// A review with its request.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Review {
    api_version: String,
    kind: String,
    pub(super) request: Request,
}

/// A review with its response.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    api_version: String,
    kind: String,
    response: Response,
}

#[derive(Debug, Clone, Serialize)]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

impl Review {
    pub(super) fn answer(self, verdict: Verdict) -> Answer {
        let allowed = verdict.errors.is_empty();
        let status = (!allowed).then(|| {
            json!({
                "status": "Failure",
                "code": 422,
                "reason": "Invalid",
                "message": verdict.errors.join("\n"),
            })
        });
        Answer {
            api_version: self.api_version,
            kind: self.kind,
            response: Response {
                uid: self.request.uid,
                allowed,
                status,
                warnings: verdict.warnings,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(version: &str) -> Review {
        let request = json!({"uid": "u-1", "operation": "CREATE", "object": {}, "oldObject": null});
        let review = json!({"apiVersion": version, "kind": "AdmissionReview", "request": request});
        serde_json::from_value(review).unwrap()
    }

    #[test]
    fn the_answer_has_the_version_and_the_uid_of_the_question() {
        for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
            let answer = serde_json::to_value(review(version).answer(Verdict::default())).unwrap();
            let response = json!({"uid": "u-1", "allowed": true});
            assert_eq!(
                answer,
                json!({"apiVersion": version, "kind": "AdmissionReview", "response": response})
            );
        }
    }

    #[test]
    fn errors_reject_and_warnings_do_not() {
        let verdict = Verdict {
            errors: vec!["a; b".to_owned(), "c; d".to_owned()],
            warnings: vec!["e".to_owned()],
        };
        let answer = review("admission.k8s.io/v1").answer(verdict);
        let answer = serde_json::to_value(answer.response).unwrap();
        assert_eq!(answer["allowed"], json!(false));
        assert_eq!(answer["status"]["message"], json!("a; b\nc; d"));
        assert_eq!(answer["warnings"], json!(["e"]));
        assert!(
            review("admission.k8s.io/v1")
                .answer(Verdict::warn("e"))
                .response
                .allowed
        );
    }
}

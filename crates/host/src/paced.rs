//! A task that runs only while its machine does.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::{Poll, ready},
};

use crate::Host;

pub(crate) async fn paced<F: Future>(host: Host, task: F) -> F::Output {
    let mut task = pin!(task);
    poll_fn(move |context| -> Poll<F::Output> {
        ready!(host.poll_runnable(context));
        task.as_mut().poll(context)
    })
    .await
}

//! Panics of tasks in a history. The runtime swallows them, as a process of its own would end.

use std::{cell::RefCell, panic, sync::Once};

thread_local! {
    /// Those of the history that this thread plays.
    static SEEN: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// From now on panics of this thread are collected instead of printed.
pub(crate) fn collect() {
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let is_ours = SEEN.with_borrow_mut(|seen| match seen {
                Some(seen) => {
                    seen.push(info.to_string());
                    true
                }
                None => false,
            });
            if !is_ours {
                others(info);
            }
        }));
    });
    SEEN.set(Some(Vec::new()));
}

/// The panics since [`collect`].
pub(crate) fn take() -> Vec<String> {
    SEEN.take().unwrap_or_default()
}

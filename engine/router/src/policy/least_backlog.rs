//! The worker that carries the least; equals in turn.
//! In: the views' loads. Out: the decode with the fewest running requests, the prefill with the fewest tokens to compute.
//! Never: randomness.
//! A decode's time goes into requests that run, a prefill's into tokens that wait, so each list has its own measure; the
//! other measure decides between equals.

use super::{Choice, NoWorker, Policy, Reason, Role, WorkerView, choose_both};

#[derive(Debug, Clone, Default)]
pub struct LeastBacklog {
    last_decode: usize,
    last_prefill: usize,
}

impl Policy for LeastBacklog {
    fn choose(&mut self, decodes: &[WorkerView], prefills: &[WorkerView]) -> Result<Choice, NoWorker> {
        let choice = choose_both(
            decodes,
            prefills,
            |candidates, role| {
                // `min_by_key` keeps the first of equals: the one whose turn it is.
                let load = |&index: &usize| candidates.views[index].load;
                match role {
                    Role::Decode => candidates.after(self.last_decode).min_by_key(|index| {
                        let load = load(index);
                        (u64::from(load.running), load.backlog_tokens)
                    }),
                    Role::Prefill => candidates.after(self.last_prefill).min_by_key(|index| {
                        let load = load(index);
                        (load.backlog_tokens, u64::from(load.running))
                    }),
                }
            },
            |decode, prefill| Reason::LeastBacklog {
                decode_running: decodes[decode].load.running,
                prefill_backlog_tokens: prefill.map_or(0, |index| prefills[index].load.backlog_tokens),
            },
        )?;
        self.last_decode = choice.decode;
        self.last_prefill = choice.prefill.unwrap_or(0);
        Ok(choice)
    }
}

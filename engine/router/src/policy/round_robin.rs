//! Everyone in turn.
//! In: the views' states. Out: the next worker of each list.
//! Never: a look at the load.

use super::{Choice, NoWorker, Policy, Reason, Role, WorkerView, choose_both};

#[derive(Debug, Clone, Default)]
pub struct RoundRobin {
    last_decode: usize,
    last_prefill: usize,
}

impl Policy for RoundRobin {
    fn choose(&mut self, decodes: &[WorkerView], prefills: &[WorkerView]) -> Result<Choice, NoWorker> {
        let choice = choose_both(
            decodes,
            prefills,
            |candidates, role| {
                let last = match role {
                    Role::Decode => self.last_decode,
                    Role::Prefill => self.last_prefill,
                };
                candidates.after(last).next()
            },
            |_, _| Reason::Turn,
        )?;
        self.last_decode = choice.decode;
        self.last_prefill = choice.prefill.unwrap_or(0);
        Ok(choice)
    }
}

//! The worker that carries the least; equals in turn.
//! In: the views' loads. Out: the decode with the fewest running requests, then the prefill of its revision with the
//! fewest tokens to compute.
//! Never: randomness.
//! A decode's time goes into requests that run, a prefill's into tokens that wait, so each list has its own measure; the
//! other measure decides between equals.

use super::{Choice, NoWorker, Policy, Reason, WorkerView, candidates};

#[derive(Debug, Clone, Default)]
pub struct LeastBacklog {
    last_decode: usize,
    last_prefill: usize,
}

impl Policy for LeastBacklog {
    fn choose(
        &mut self,
        decodes: &[WorkerView<'_>],
        prefills: Option<&[WorkerView<'_>]>,
    ) -> Result<Choice, NoWorker> {
        let from = candidates::decodes(decodes, prefills)?;
        // `min_by_key` keeps the first of equals: the one whose turn it is.
        let least = from.after(self.last_decode).min_by_key(|&position| {
            let load = decodes[position].load;
            (load.running, load.backlog_tokens)
        });
        let decode = least.ok_or(NoWorker::Decode)?;
        let (prefill, alone) = match prefills {
            None => (None, from.is_single()),
            Some(prefills) => {
                let partners = candidates::prefills(&decodes[decode], prefills);
                let least = partners.after(self.last_prefill).min_by_key(|&position| {
                    let load = prefills[position].load;
                    (load.backlog_tokens, load.running)
                });
                (Some(least.ok_or(NoWorker::Pair)?), from.is_single() && partners.is_single())
            }
        };
        let backlog =
            prefill.zip(prefills).map_or(0, |(position, views)| views[position].load.backlog_tokens);
        let reason = if alone {
            Reason::OnlyOnes
        } else {
            let decode_running = decodes[decode].load.running;
            Reason::LeastBacklog { decode_running, prefill_backlog_tokens: backlog }
        };
        self.last_decode = decode;
        self.last_prefill = prefill.unwrap_or(0);
        Ok(Choice { decode, prefill, reason })
    }
}

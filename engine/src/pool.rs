//! Who holds which page and which request slot of the device pools.
//! In: the pools' sizes. Out: a [`Seat`] per sequence; dropping it is the only way back.
//! Never: bytes of the pools (the model owns them), waiting, growth.
//! Accounting is exact: free + held is the pool's size at every moment, and a page has one holder.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine_model::{Page, Slot};

/// Free pages and slots. Clones share them.
#[derive(Debug, Clone)]
pub struct Pool {
    free: Arc<Mutex<Free>>,
    pages: u32,
    slots: u32,
}

#[derive(Debug)]
struct Free {
    pages: Vec<Page>,
    slots: Vec<Slot>,
}

/// How full the pools are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    pub pages: u32,
    pub free_pages: u32,
    pub slots: u32,
    pub free_slots: u32,
}

impl Pool {
    pub fn new(pages: u32, slots: u32) -> Self {
        // The lowest numbers are handed out first: the end of the list is taken.
        let free =
            Free { pages: (0..pages).rev().map(Page).collect(), slots: (0..slots).rev().map(Slot).collect() };
        Self { free: Arc::new(Mutex::new(free)), pages, slots }
    }

    /// A slot and `pages` pages, or nothing at all.
    pub fn take(&self, pages: usize) -> Option<Seat> {
        let mut free = self.lock();
        if free.slots.is_empty() || free.pages.len() < pages {
            return None;
        }
        let slot = free.slots.pop()?;
        let rest = free.pages.len() - pages;
        let mut taken = free.pages.split_off(rest);
        taken.reverse();
        Some(Seat { pool: self.clone(), slot, pages: taken })
    }

    pub fn usage(&self) -> PoolUse {
        let free = self.lock();
        let count = |n: usize| u32::try_from(n).expect("no more are free than the pool was built with");
        PoolUse {
            pages: self.pages,
            free_pages: count(free.pages.len()),
            slots: self.slots,
            free_slots: count(free.slots.len()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        // The lists are whole at every point where a holder could have panicked.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One sequence's slot and pages. Dropping it gives them back.
#[derive(Debug)]
pub struct Seat {
    pool: Pool,
    slot: Slot,
    pages: Vec<Page>,
}

impl Seat {
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// In the order of the sequence's tokens.
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// One more page at the end; false when none is free.
    #[must_use]
    pub fn grow(&mut self) -> bool {
        let page = self.pool.lock().pages.pop();
        self.pages.extend(page);
        page.is_some()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut free = self.pool.lock();
        free.slots.push(self.slot);
        free.pages.extend(self.pages.drain(..).rev());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_seat_is_all_or_nothing() {
        let pool = Pool::new(4, 1);
        assert!(pool.take(5).is_none());
        assert_eq!(pool.usage().free_slots, 1);
        let seat = pool.take(3).unwrap();
        assert_eq!(seat.pages(), [Page(0), Page(1), Page(2)]);
        assert!(pool.take(1).is_none(), "the only slot is taken");
        drop(seat);
        assert_eq!(pool.usage(), PoolUse { pages: 4, free_pages: 4, slots: 1, free_slots: 1 });
    }

    proptest! {
        #[test]
        fn no_page_or_slot_is_held_twice_or_lost(steps in prop::collection::vec((0_u8..3, 0_usize..6), 1..200)) {
            let pool = Pool::new(16, 4);
            let mut seats: Vec<Seat> = Vec::new();
            for (what, n) in steps {
                match what {
                    0 => seats.extend(pool.take(n)),
                    1 if !seats.is_empty() => { let at = n % seats.len(); let _ = seats[at].grow(); }
                    _ if !seats.is_empty() => { let at = n % seats.len(); seats.swap_remove(at); }
                    _ => {}
                }
                let held: Vec<Page> = seats.iter().flat_map(|s| s.pages().to_vec()).collect();
                let slots: BTreeSet<Slot> = seats.iter().map(Seat::slot).collect();
                prop_assert_eq!(held.iter().collect::<BTreeSet<_>>().len(), held.len());
                prop_assert_eq!(slots.len(), seats.len());
                prop_assert_eq!(pool.usage().free_pages as usize + held.len(), 16);
                prop_assert_eq!(pool.usage().free_slots as usize + slots.len(), 4);
            }
        }
    }
}

use super::grants::Rank;
use super::*;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

const UNBOUND: usize = usize::MAX >> 1;

fn accounts(of: [usize; TIERS], reserve: usize) -> Arc<Accounts> {
    let accounts = Accounts::new([of; RESOURCES]);
    accounts.reserve(R, reserve);
    accounts
}

fn from(accounts: &Arc<Accounts>, host: u8) -> Arc<Payer> {
    accounts.connection([10, 0, 0, host].into())
}

fn poll<T>(future: &mut Pin<Box<impl Future<Output = T> + ?Sized>>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

const R: Resource = Resource::Requests;

#[test]
fn each_account_has_its_cap_and_holders_give_back() {
    let accounts = accounts([3, 5, 6, 8], 0);
    let (a, b, c) = (from(&accounts, 1), from(&accounts, 1), from(&accounts, 2));
    let first = a.try_take(R, 3).unwrap();
    assert_eq!(a.try_take(R, 1).unwrap_err(), Tier::Connection);
    let second = b.try_take(R, 2).unwrap();
    assert_eq!(b.try_take(R, 1).unwrap_err(), Tier::Address);
    let [t, u] = [c.for_call(Some([7; 32])), from(&accounts, 3).for_call(Some([7; 32]))];
    let third = t.try_take(R, 3).unwrap();
    assert_eq!(u.try_take(R, 1).unwrap_err(), Tier::All);
    drop(first);
    let fourth = u.try_take(R, 3).unwrap();
    assert_eq!(from(&accounts, 4).for_call(Some([7; 32])).try_take(R, 1).unwrap_err(), Tier::Token);
    assert_eq!(accounts.used(R), 8);
    drop((second, third, fourth));
    assert_eq!(accounts.used(R), 0);
    drop((a, b, c, t, u));
    let state = accounts.state();
    assert_eq!((state.accounts.len(), state.named.len()), (1, 0), "no account is left");
}

#[test]
fn need_beyond_the_cap_is_granted_alone() {
    let accounts = accounts([4; TIERS], 0);
    let payer = from(&accounts, 1);
    let large = payer.try_take(R, 100).unwrap();
    assert!(payer.try_take(R, 1).is_err());
    assert_eq!(accounts.used(R), 4);
    drop(large);
    assert_eq!(accounts.used(R), 0);
}

#[test]
fn waiting_callers_are_served_in_order_and_others_pass() {
    let accounts = accounts([2, UNBOUND, UNBOUND, 10], 0);
    let (a, b) = (from(&accounts, 1), from(&accounts, 2));
    let held = a.try_take(R, 2).unwrap();
    let mut large = Box::pin(a.take(R, 2));
    let mut small = Box::pin(a.take(R, 1));
    assert!(poll(&mut large).is_none() && poll(&mut small).is_none());
    assert_eq!(accounts.waiting(R), 2);
    let other = b.try_take(R, 2).unwrap();
    drop(held);
    let large = poll(&mut large).unwrap();
    assert!(poll(&mut small).is_none(), "the oldest is served first");
    drop(large);
    let small = poll(&mut small).unwrap();
    drop((small, other));
    assert_eq!((accounts.used(R), accounts.waiting(R)), (0, 0));
}

#[test]
fn caller_that_gives_up_unblocks_those_behind_it() {
    let accounts = accounts([4; TIERS], 0);
    let payer = from(&accounts, 1);
    let held = payer.try_take(R, 3).unwrap();
    let mut large = Box::pin(payer.take(R, 4));
    let mut small = Box::pin(payer.take(R, 1));
    assert!(poll(&mut large).is_none() && poll(&mut small).is_none());
    drop(large);
    let small = poll(&mut small).expect("there is room");
    // Dropped after the grant, before the next poll.
    let mut late = Box::pin(payer.take(R, 4));
    assert!(poll(&mut late).is_none());
    drop((held, small));
    assert_eq!(accounts.used(R), 4);
    drop(late);
    assert_eq!(accounts.used(R), 0);
}

/// Messages that arrive together and each wait for the rest of their share would wait forever.
#[test]
fn shares_that_grow_never_block_each_other() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (message, cap) = (16, 16 + random.usize(0..48));
        let accounts = accounts([cap.min(24), cap.min(40), UNBOUND, cap], message);
        let payers: Vec<_> = (0..6).map(|n| from(&accounts, n / 2)).collect();
        // Each needs a message's size, a few pieces at a time; waiting ones are polled until something moves.
        let mut open: Vec<(Option<Share>, usize)> =
            (0..12).map(|n| (Some(payers[n % payers.len()].nothing(R)), random.usize(1..=message))).collect();
        let mut waiting: Vec<Option<Pin<Box<dyn Future<Output = Share>>>>> =
            (0..open.len()).map(|_| None).collect();
        let (mut done, mut turns) = (0, 0);
        while done < open.len() {
            turns += 1;
            assert!(turns < 100_000, "seed {seed}: nothing moves");
            let n = random.usize(0..open.len());
            let total = open[n].1;
            if let Some(future) = &mut waiting[n] {
                let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                let Poll::Ready(share) = polled else { continue };
                (waiting[n], open[n].0) = (None, Some(share));
            }
            let Some(share) = open[n].0.take() else { continue };
            if share.amount() >= total {
                done += 1; // it is complete and is dropped
                continue;
            }
            let want = (share.amount() + random.usize(1..=4)).min(total);
            waiting[n] = Some(Box::pin(share.grow(want, total)));
        }
        drop(waiting);
        assert_eq!((accounts.used(R), accounts.waiting(R)), (0, 0), "seed {seed}");
    }
}

#[test]
fn queued_amount_counts_for_its_connection_and_one_piece_for_others() {
    let accounts = accounts([4, 4, 4, 4], 0);
    let payer = from(&accounts, 1);
    let mut kept = payer.try_take(R, 3).unwrap();
    kept.keep_to_connection();
    assert_eq!(accounts.used(R), 1);
    assert_eq!(payer.try_take(R, 2).unwrap_err(), Tier::Connection);
    drop(kept);
    assert!(payer.try_take(R, 4).is_ok());
    let mut kept = accounts.anybody().try_take(R, 4).unwrap();
    kept.keep_to_connection();
    assert_eq!(accounts.used(R), 1);
    drop(kept);
    assert_eq!(accounts.used(R), 0);
}

/// Memory went to the caller that had waited longest: a reader waited behind every stream of a client that read
/// nothing.
#[test]
fn next_grant_goes_to_the_connection_that_holds_least() {
    let accounts = accounts([UNBOUND, UNBOUND, UNBOUND, 8], 0);
    let (greedy, other) = (from(&accounts, 1), from(&accounts, 1));
    let mut held: Vec<_> = (0..8).map(|_| greedy.try_take(R, 1).unwrap()).collect();
    let mut line: Vec<_> = (0..40).map(|_| Box::pin(greedy.take(R, 1))).collect();
    assert!(line.iter_mut().all(|wait| poll(wait).is_none()));
    let mut late = Box::pin(other.take(R, 1));
    assert!(poll(&mut late).is_none());
    drop(held.pop());
    let first = poll(&mut late).expect("no caller holds less");
    // It holds one, the other one seven: its next request comes first again.
    let mut again = Box::pin(other.take(R, 1));
    assert!(poll(&mut again).is_none());
    drop(held.pop());
    let second = poll(&mut again).expect("it still holds less");
    drop(held.pop());
    let served: Vec<_> = line.iter_mut().map(poll).collect();
    assert!(served[0].is_some() && served[1..].iter().all(Option::is_none), "the rest is served by age");
    drop((first, second));
}

/// The same for addresses and tokens, whatever their number of connections.
#[test]
fn next_grant_goes_to_the_address_and_the_token_that_hold_least() {
    for by_token in [false, true] {
        let accounts = accounts([UNBOUND, UNBOUND, UNBOUND, 8], 0);
        let payer = |n: u8, is_other: bool| match by_token {
            true => from(&accounts, n).for_call(Some([u8::from(is_other); 32])),
            false => from(&accounts, u8::from(is_other)),
        };
        let greedy: Vec<_> = (0..40).map(|n| payer(n, false)).collect();
        let mut held: Vec<_> = greedy[..6].iter().map(|p| p.try_take(R, 1).unwrap()).collect();
        // It holds as much as each of their connections, and less than their address or token.
        let other = payer(99, true);
        let own = other.try_take(R, 2).unwrap();
        let mut line: Vec<_> = greedy.iter().map(|p| Box::pin(p.take(R, 1))).collect();
        assert!(line.iter_mut().all(|wait| poll(wait).is_none()));
        let mut late = Box::pin(other.take(R, 1));
        assert!(poll(&mut late).is_none());
        drop(held.pop());
        assert!(poll(&mut late).is_some(), "by token: {by_token}");
        drop(own);
    }
}

/// Returned room goes to the caller that waits longest, whichever line it is in.
#[test]
fn callers_in_different_lines_are_served_by_age() {
    for by_token in [true, false] {
        let (token, all) = if by_token { (1, 2) } else { (UNBOUND, 1) };
        let accounts = accounts([UNBOUND, 1, token, all], 0);
        let [busy, other] = [1, 2].map(|host| from(&accounts, host).for_call(Some([7; 32])));
        let held = busy.try_take(R, 1).unwrap();
        let mut waits = Box::pin(other.take(R, 1));
        let mut again = Box::pin(busy.take(R, 1));
        assert!(poll(&mut waits).is_none() && poll(&mut again).is_none());
        drop(held);
        assert!(poll(&mut again).is_none(), "it is younger");
        drop(poll(&mut waits).expect("no caller has waited longer"));
        assert!(poll(&mut again).is_some());
    }
}

/// Small callers of an address took the room that it returned, before a large caller of another address that held
/// nothing.
#[test]
fn callers_of_an_address_do_not_pass_those_that_hold_less() {
    let accounts = accounts([UNBOUND, 4, UNBOUND, 8], 0);
    let [busy, still, other] = [1, 2, 3].map(|host| from(&accounts, host));
    let _still = still.try_take(R, 4).unwrap();
    let mut held: Vec<_> = (0..4).map(|_| busy.try_take(R, 1).unwrap()).collect();
    let mut small = Box::pin(busy.take(R, 1));
    assert!(poll(&mut small).is_none());
    let mut large = Box::pin(other.take(R, 3));
    assert!(poll(&mut large).is_none());
    for left in [3, 2, 1] {
        assert!(poll(&mut large).is_none() && poll(&mut small).is_none(), "{left} left");
        drop(held.pop());
    }
    assert!(poll(&mut small).is_none());
    let large = poll(&mut large).expect("it holds nothing");
    drop(large);
    assert!(poll(&mut small).is_some());
}

/// A caller that needs little and holds nothing waited behind one that needs much and holds much.
#[test]
fn newcomer_passes_callers_that_hold_more() {
    let accounts = accounts([UNBOUND, UNBOUND, UNBOUND, 8], 0);
    let (greedy, other) = (from(&accounts, 1), from(&accounts, 1));
    let held = greedy.try_take(R, 6).unwrap();
    let mut large = Box::pin(greedy.take(R, 6));
    assert!(poll(&mut large).is_none());
    assert!(other.try_take(R, 1).is_ok());
    assert!(greedy.try_take(R, 1).is_err(), "it would pass an equal caller of its own connection");
    drop(held);
}

/// Half of a message had arrived; each newcomer held less, and the rest of it waited until its time was over.
#[tokio::test(start_paused = true)]
async fn partly_received_message_is_not_passed_forever() {
    let accounts = accounts([UNBOUND, UNBOUND, UNBOUND, 8], 0);
    let (busy, patience) = (from(&accounts, 1), Duration::from_secs(4));
    let _other = busy.try_take(R, 1).unwrap();
    let begun = busy.try_take(R, 3).unwrap();
    let mut newcomers = vec![from(&accounts, 9).try_take(R, 4).unwrap()];
    let mut rest = Box::pin(begun.grow_within(patience, 4, 4));
    assert!(poll(&mut rest).is_none());
    let mut waits: Vec<_> = Vec::new();
    for host in 10..20 {
        let payer = from(&accounts, host);
        waits.push(Box::pin(async move { payer.take(R, 4).await }));
        assert!(waits.iter_mut().filter_map(poll).next().is_none());
        if host == 15 {
            tokio::time::advance(patience / 2).await;
        }
        drop(newcomers.pop());
        if host >= 15 {
            break;
        }
        let served = waits.iter_mut().position(|wait| poll(wait).map(|s| newcomers.push(s)).is_some());
        drop(waits.remove(served.expect("it holds less")));
        assert!(poll(&mut rest).is_none());
    }
    let whole = poll(&mut rest).expect("half of its time is over").expect("in time");
    assert_eq!(whole.amount(), 4);
}

/// A newcomer passed a large caller, which then waited behind a small one: the small one was not served until some room
/// was returned.
#[test]
fn grant_to_a_newcomer_serves_the_next_caller() {
    let accounts = accounts([UNBOUND, UNBOUND, UNBOUND, 10], 0);
    let (first, second) = (from(&accounts, 1), from(&accounts, 2));
    let held = (first.try_take(R, 3).unwrap(), second.try_take(R, 4).unwrap());
    let mut large = Box::pin(first.take(R, 6));
    let mut small = Box::pin(second.take(R, 1));
    assert!(poll(&mut large).is_none() && poll(&mut small).is_none());
    // Another connection of the first one's address, which holds nothing.
    let _newcomer = from(&accounts, 1).try_take(R, 2).unwrap();
    assert!(poll(&mut small).is_some(), "its address holds less now");
    drop(held);
}

/// A slow reader was ended because of memory that another call of its connection held.
#[test]
fn call_is_judged_by_its_own_memory() {
    let accounts = accounts([4; TIERS], 0);
    let connection = from(&accounts, 1);
    let [holds, holds_nothing] = [connection.for_call(None), connection.for_call(None)];
    let mut share = holds.try_take(R, 4).unwrap();
    assert_eq!(holds.pressure(R), None, "no call waits");
    let mut own = Box::pin(holds.take(R, 1));
    assert!(poll(&mut own).is_none());
    assert_eq!(holds.pressure(R), None, "no other call waits");
    let waits = connection.for_call(None);
    let mut wait = Box::pin(waits.take(R, 1));
    assert!(poll(&mut wait).is_none());
    assert_eq!(holds.pressure(R), Some(Pressure { held: 4, given_back: 0 }));
    assert_eq!((holds_nothing.pressure(R), waits.pressure(R)), (None, None));
    drop(own);
    share.shrink(3);
    assert_eq!(holds.pressure(R), None);
    // It was granted, and counts although its caller has not polled yet.
    let mut third = Box::pin(holds_nothing.take(R, 1));
    assert!(poll(&mut third).is_none());
    assert_eq!(waits.pressure(R), Some(Pressure { held: 1, given_back: 0 }));
}

/// Reading the first of a line compared all connections that wait there: with 4,000 of them a grant took milliseconds.
#[test]
fn finding_the_first_caller_takes_one_step_per_token() {
    let accounts = accounts([UNBOUND, UNBOUND, UNBOUND, 1], 0);
    let payers: Vec<_> =
        (0..100).map(|n| from(&accounts, n).for_call(n.is_multiple_of(2).then_some([7; 32]))).collect();
    let held = payers[0].try_take(R, 1).unwrap();
    let mut line: Vec<_> = (0..500).map(|n| Box::pin(payers[n % 100].take(R, 1))).collect();
    assert!(line.iter_mut().all(|wait| poll(wait).is_none()));
    {
        let state = accounts.state();
        let line = &state.accounts[ALL].meters[R as usize].line;
        assert_eq!((line.len(), line.candidates().count()), (500, 2));
    }
    drop((held, line));
    assert_eq!((accounts.used(R), accounts.waiting(R)), (0, 0));
}

/// Reading the first of a line compared all addresses of which a message had partly arrived.
#[test]
fn finding_the_first_caller_takes_one_step_per_size() {
    let accounts = accounts([UNBOUND, UNBOUND, UNBOUND, 4500], 0);
    let begun: Vec<_> =
        (0..200).map(|n| from(&accounts, n).try_take(R, 1 + usize::from(n) % 40).unwrap()).collect();
    let held = from(&accounts, 250).try_take(R, 4500 - accounts.used(R)).unwrap();
    let mut line: Vec<_> = begun.into_iter().map(|share| Box::pin(share.grow(50, 50))).collect();
    assert!(line.iter_mut().all(|wait| poll(wait).is_none()));
    {
        let state = accounts.state();
        let line = &state.accounts[ALL].meters[R as usize].line;
        // 1, 2, 4 and so on up to 64.
        assert_eq!((line.len(), line.candidates().count()), (200, 7));
    }
    drop((held, line));
    assert_eq!((accounts.used(R), accounts.waiting(R)), (0, 0));
}

/// Each read of the metrics went through all waiting callers.
#[test]
fn waiting_callers_are_counted_by_resource() {
    let accounts = accounts([1; TIERS], 0);
    let payer = from(&accounts, 1);
    let held = [Resource::Answers, R].map(|resource| payer.try_take(resource, 1).unwrap());
    let mut waits = [Resource::Answers, R, R].map(|resource| Box::pin(payer.take(resource, 1)));
    assert!(waits.iter_mut().all(|wait| poll(wait).is_none()));
    let count = || [Resource::Answers, R, Resource::Turns].map(|resource| accounts.waiting(resource));
    assert_eq!(count(), [1, 2, 0]);
    drop(held);
    assert_eq!(count(), [0, 1, 0]);
    drop(waits);
    assert_eq!(count(), [0; 3]);
}

/// The first of a line, by comparing all callers there.
fn first_of_all(accounts: &Accounts, state: &State, slot: usize) -> Option<Rank> {
    let line = &state.accounts[slot].meters[R as usize].line;
    let callers = || state.waiting[R as usize].values().map(|w| w.caller).filter(|caller| line.has(caller));
    let is_first = |caller: &Caller| caller.first_at.is_some_and(|at| at <= Instant::now());
    if let Some(first) = callers().find(is_first) {
        return Some((None, first.number));
    }
    let mut oldest = BTreeMap::new();
    let rank = |Caller { number, slots, holding, .. }: Caller| {
        let pair = [Tier::Address, Tier::Token].map(|tier| slots[tier as usize]);
        let stands = !(holding.is_some() && oldest.insert(pair, number).is_some());
        stands.then(|| (accounts.held_parts(state, &slots, R, holding), number))
    };
    callers().filter_map(rank).min()
}

#[tokio::test(start_paused = true)]
async fn lines_keep_their_order_while_amounts_change() {
    const PATIENCE: Duration = Duration::from_millis(40);
    let mut firsts = 0;
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let accounts = accounts([6, 9, 12, 16], 4);
        let payers: Vec<_> = (0..12)
            .map(|n| {
                let token = random.u8(0..3);
                from(&accounts, n / 3).for_call((token > 0).then_some([token; 32]))
            })
            .collect();
        let mut held: Vec<Share> = Vec::new();
        let mut waiting: Vec<Pin<Box<dyn Future<Output = Option<Share>>>>> = Vec::new();
        for _ in 0..200 {
            match random.usize(0..8) {
                0 | 1 => {
                    let (payer, amount) = (random.choice(&payers).unwrap(), random.usize(1..=4));
                    let grown = payer.nothing(R).grow(amount, amount + random.usize(0..3));
                    waiting.push(Box::pin(async move { Some(grown.await) }));
                }
                2 if !held.is_empty() => {
                    let share = held.swap_remove(random.usize(..held.len()));
                    let want = share.amount() + random.usize(1..=3);
                    waiting.push(Box::pin(async move { Some(share.grow(want, want).await) }));
                }
                3 if !held.is_empty() => drop(held.swap_remove(random.usize(..held.len()))),
                4 if !held.is_empty() => {
                    let n = random.usize(..held.len());
                    held[n].shrink(1);
                }
                5 if waiting.len() > 8 => drop(waiting.swap_remove(random.usize(..waiting.len()))),
                6 if !held.is_empty() => {
                    let share = held.swap_remove(random.usize(..held.len()));
                    let want = share.amount() + random.usize(1..=3);
                    waiting.push(Box::pin(share.grow_within(PATIENCE, want, want)));
                }
                7 => tokio::time::advance(PATIENCE / 16).await,
                _ => {}
            }
            for n in (0..waiting.len()).rev() {
                if let Some(share) = poll(&mut waiting[n]) {
                    drop(waiting.swap_remove(n));
                    held.extend(share);
                }
            }
            let state = accounts.state();
            for (slot, _) in &state.accounts {
                let first = accounts.first_in_line(&state, slot, R);
                assert_eq!(first, first_of_all(&accounts, &state, slot), "seed {seed}");
                firsts += usize::from(matches!(first, Some((None, _))));
            }
        }
        drop((held, waiting, payers));
        let state = accounts.state();
        let is_empty = state.waiting.iter().all(BTreeMap::is_empty);
        assert_eq!((state.accounts.len(), is_empty), (1, true), "no account is left");
    }
    assert!(firsts > 1000, "{firsts} were first because of their age");
}

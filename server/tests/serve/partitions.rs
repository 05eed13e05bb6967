//! Cut links between three servers under load, each in a network namespace of its own. The majority keeps
//! working, the other servers return nothing stale, and once the links are repaired all replicas are the
//! same.

use crate::harness::{Server, leader, status, wait};
use crate::network::{HUB, Network, three_apart};
use crate::notary::{Load, Notary, by_strangers};
use crate::stranger::{Answered, Stranger};
use std::process::Command;
use std::time::{Duration, Instant};

/// The servers except this node.
fn others(servers: &[Server], node: u64) -> Vec<&Server> {
    servers.iter().filter(|s| s.node != node).collect()
}

fn numbers(servers: &[&Server]) -> Vec<u64> {
    servers.iter().map(|s| s.node).collect()
}

/// Waits until one of these leads that is not `old`.
fn another_leads(servers: &[&Server], old: u64) -> u64 {
    wait("another server leads", || status(servers)["leader"].as_u64().filter(|next| *next != old))
}

/// Waits until all three answer as members of one cluster with one leader.
fn all_agree(servers: &[&Server]) {
    wait("all three are one cluster again", || {
        let shown = status(servers);
        let roles: Vec<_> = shown["replicas"].as_array()?.iter().map(|r| r["role"].as_str()).collect();
        let count = |role: &str| roles.iter().filter(|r| **r == Some(role)).count();
        (count("leader") == 1 && count("follower") == 2).then_some(())
    });
}

fn term(servers: &[&Server]) -> u64 {
    let shown = status(servers);
    shown["replicas"].as_array().unwrap().iter().filter_map(|r| r["term"].as_u64()).max().unwrap()
}

/// The leader is cut off from both others but not from its clients: they reach both sides, and both give
/// correct answers.
#[test]
fn leader_that_only_clients_reach_accepts_nothing() {
    three_apart(|network, servers| {
        let all: Vec<&Server> = servers.iter().collect();
        let notary = Notary::start(&all, Load::LIGHT);
        for round in 1..=2 {
            notary.goes_on("a whole network", 100);
            let old = leader(&all);
            let left = others(servers, old);
            let alone = &servers[old as usize - 1];
            notary.gap();
            network.part(old, &numbers(&left));
            let next = another_leads(&left, old);
            notary.goes_on("the leader was cut off", 200);
            println!(
                "round {round}: node {old} alone, {next} led; {:?} without an acknowledgement",
                notary.gap()
            );

            // By now it knows that it does not lead, or cannot prove that it does.
            for n in 1..=3 {
                let told = Stranger::meet(alone).ask(by_strangers(round * 10 + n)).join().unwrap();
                assert!(told.appended.index().is_none() && told.end.index().is_none(), "{told:?}");
            }
            network.heal();
            all_agree(&all);
            wait("it redirects its clients to the leader", || {
                let told = Stranger::meet(alone).ask(by_strangers(round * 10)).join().unwrap();
                match told.appended {
                    Answered::Elsewhere(host) => (host != alone.client).then_some(()),
                    // It leads again.
                    Answered::At(_) => Some(()),
                    Answered::No => None,
                }
            });
        }
        notary.check(&all);
    });
}

/// The leader's cable is cut: it is silent for its clients, but no connection ends.
#[test]
fn clients_leave_an_unreachable_leader() {
    three_apart(|network, servers| {
        let all: Vec<&Server> = servers.iter().collect();
        let notary = Notary::start(&all, Load::LIGHT);
        notary.goes_on("the start", 100);
        let old = leader(&all);
        let left = others(servers, old);
        notary.gap();
        network.part(old, &[&numbers(&left)[..], &[HUB]].concat());
        let next = another_leads(&left, old);
        notary.goes_on("the leader's cable was out", 200);
        println!("node {old} out, {next} led; {:?} without an acknowledgement", notary.gap());
        network.heal();
        all_agree(&all);
        notary.check(&all);
    });
}

/// The leader can only send, or only receive: either way another server is elected, and the old leader
/// catches up later.
#[test]
fn leader_cut_off_in_one_direction_is_replaced() {
    three_apart(|network, servers| {
        let all: Vec<&Server> = servers.iter().collect();
        let notary = Notary::start(&all, Load::LIGHT);
        for what in ["mute", "deaf", "mute", "deaf"] {
            notary.goes_on("a whole network", 100);
            let old = leader(&all);
            let left = others(servers, old);
            notary.gap();
            for other in numbers(&left) {
                if what == "mute" { network.cut(old, other) } else { network.cut(other, old) }
            }
            let next = another_leads(&left, old);
            notary.goes_on("the leader was cut off in one direction", 200);
            println!("node {old} {what}, {next} led; {:?} without an acknowledgement", notary.gap());
            network.heal();
            all_agree(&all);
        }
        notary.check(&all);
    });
}

/// A follower does not hear the leader, or the leader does not hear it, although the third server reaches
/// both: appends continue, and the follower catches up.
#[test]
fn follower_behind_a_one_way_link_disturbs_no_append() {
    three_apart(|network, servers| {
        let all: Vec<&Server> = servers.iter().collect();
        let notary = Notary::start(&all, Load::LIGHT);
        for direction in ["to the follower", "from the follower"] {
            notary.goes_on("a whole network", 100);
            let leads = leader(&all);
            let (follower, before) = (numbers(&others(servers, leads))[0], term(&all));
            notary.gap();
            let (from, to) = if direction.starts_with("to") { (leads, follower) } else { (follower, leads) };
            network.cut(from, to);
            // Appends during several election timeouts.
            let until = Instant::now() + Duration::from_secs(4);
            while Instant::now() < until {
                notary.goes_on("one link was cut", 20);
            }
            wait("the follower lags behind", || {
                let shown = status(&all);
                let last =
                    shown["replicas"].as_array()?.iter().find(|r| r["node"] == follower)?["last"].as_u64()?;
                (last + 100 < notary.end()).then_some(())
            });
            let after = term(&all);
            println!(
                "cut {direction}: terms {before} to {after}; {:?} without an acknowledgement",
                notary.gap()
            );
            network.heal();
            all_agree(&all);
        }
        notary.check(&all);
    });
}

/// The leader has two connections to the only running follower. The one for blocks dies silently, the one for
/// heartbeats does not: no server starts an election, which would not help, and nothing was acknowledged for
/// half a minute.
#[test]
fn connection_that_dies_alone_is_reconnected() {
    three_apart(|network, servers| {
        let all: Vec<&Server> = servers.iter().collect();
        let notary = Notary::start(&all, Load::LIGHT);
        notary.goes_on("a whole network", 200);
        let leads = leader(&all);
        let [kept, away] = numbers(&others(servers, leads))[..] else { unreachable!() };
        servers[away as usize - 1].kill();
        notary.goes_on("one follower was gone", 100);
        let left = [leads, kept].map(|node| &servers[node as usize - 1]);
        let before = (leader(&left), term(&left));
        notary.gap();
        network.lose_busiest(leads, kept);
        notary.goes_on("the packets of one connection vanished", 100);
        let after = (leader(&left), term(&left));
        println!("{:?} without an acknowledgement, leader and term {before:?}, {after:?}", notary.gap());
        servers[away as usize - 1].start(&[]);
        let all: Vec<&Server> = servers.iter().collect();
        all_agree(&all);
        notary.check(&all);
    });
}

/// Links fail and recover faster, and slower, than an election.
#[test]
fn flapping_links_lose_no_record() {
    three_apart(|network, servers| {
        let all: Vec<&Server> = servers.iter().collect();
        let notary = Notary::start(&all, Load::LIGHT);
        notary.goes_on("the start", 100);
        notary.gap();
        for (n, millis) in [30, 700, 80, 1500, 200, 400, 50, 1000, 300, 1200].into_iter().enumerate() {
            // In turn: the current leader and a follower; both of its links or one; both directions or one.
            let leads = leader(&all);
            let hit = if n % 2 == 0 { numbers(&others(servers, leads))[0] } else { leads };
            let left = numbers(&others(servers, hit));
            for _ in 0..3 {
                match n % 5 {
                    0 | 3 => network.part(hit, &left),
                    1 => left.iter().for_each(|other| network.cut(hit, *other)),
                    2 => network.part(hit, &left[..1]),
                    _ => network.cut(left[1], hit),
                }
                std::thread::sleep(Duration::from_millis(millis));
                network.heal();
                std::thread::sleep(Duration::from_millis(millis / 2));
            }
        }
        all_agree(&all);
        notary.goes_on("the links were whole again", 100);
        println!("{:?} without an acknowledgement at worst, terms to {}", notary.gap(), term(&all));
        notary.check(&all);
    });
}

/// One link is slow and loses packets: the other follower forms the majority, and the slow one catches up as
/// it can.
#[test]
fn slow_link_slows_only_its_own_follower() {
    three_apart(|network, servers| {
        let all: Vec<&Server> = servers.iter().collect();
        let leads = leader(&all);
        let slow = numbers(&others(servers, leads))[0];
        if !slowed(network, slow) {
            return;
        }
        let notary = Notary::start(&all, Load::LIGHT);
        let begun = Instant::now();
        notary.goes_on("one link was slow", 1000);
        println!("1,000 appends in {:?} beside a slow link", begun.elapsed());
        notary.check(&all);
    });
}

/// Delays the packets of this node by 80 ms and drops a fiftieth of them, if the kernel can.
fn slowed(network: &Network, node: u64) -> bool {
    let how = ["qdisc", "add", "dev", "eth0", "root", "netem", "delay", "80ms", "20ms", "loss", "2%"];
    let ran = Command::new("tc").args(["-n", &network.namespace(node)]).args(how).output();
    match ran {
        Ok(ran) if ran.status.success() => true,
        Ok(ran) => {
            println!("SKIPPED, no slow links here: {}", String::from_utf8_lossy(&ran.stderr).trim());
            false
        }
        Err(error) => {
            println!("SKIPPED, cannot run tc: {error}");
            false
        }
    }
}

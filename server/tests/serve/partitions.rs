//! Cut links between three servers, each in a network namespace of its own, under load: whoever is with the majority
//! goes on, whoever is not tells nothing stale, and once the links are whole all replicas are the same.

use crate::harness::{Server, leader, status, wait};
use crate::network::{HUB, Network, three_apart};
use crate::notary::{Load, Notary, by_strangers};
use crate::stranger::{Stranger, Told};
use std::process::Command;
use std::time::{Duration, Instant};

/// Those that are not this node.
fn others(servers: &[Server], node: u64) -> Vec<&Server> {
    servers.iter().filter(|s| s.node != node).collect()
}

fn numbers(servers: &[&Server]) -> Vec<u64> {
    servers.iter().map(|s| s.node).collect()
}

/// Waits until one of these leads, and not `old`.
fn another_leads(servers: &[&Server], old: u64) -> u64 {
    wait("another one leads", || status(servers)["leader"].as_u64().filter(|next| *next != old))
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

/// The leader is cut off from both others, but not from its clients: they reach both sides, and are told the truth by
/// each.
#[test]
fn a_leader_that_only_clients_reach_says_yes_to_nothing() {
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
            wait("it sends its clients to the leader", || {
                let told = Stranger::meet(alone).ask(by_strangers(round * 10)).join().unwrap();
                match told.appended {
                    Told::Elsewhere(host) => (host != alone.client).then_some(()),
                    // It leads again.
                    Told::At(_) => Some(()),
                    Told::No => None,
                }
            });
        }
        notary.check(&all);
    });
}

/// The leader's cable is out: for its clients it is silent, no connection ends.
#[test]
fn a_leader_that_nobody_reaches_is_left_by_its_clients() {
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

/// The leader speaks and nobody hears it, or hears nobody: either way another one leads, and it comes back.
#[test]
fn a_leader_that_is_deaf_or_mute_is_replaced() {
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

/// A follower that does not hear the leader, or is not heard by it, though the third reaches both: appends go on, and it
/// catches up.
#[test]
fn a_follower_behind_a_link_of_one_direction_disturbs_nobody() {
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
            // Several election time-outs of appends.
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

/// Of the two connections to the only follower that is there, that of the blocks dies silently, and the one of the heartbeats
/// does not: nobody elects another leader, which would not help, and nothing was acknowledged for half a minute.
#[test]
fn a_connection_that_dies_alone_is_made_again() {
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
        notary.goes_on("what goes over one connection vanished", 100);
        let after = (leader(&left), term(&left));
        println!("{:?} without an acknowledgement, leader and term {before:?}, {after:?}", notary.gap());
        servers[away as usize - 1].start(&[]);
        let all: Vec<&Server> = servers.iter().collect();
        all_agree(&all);
        notary.check(&all);
    });
}

/// Links that come and go faster, and slower, than an election.
#[test]
fn links_that_flap_cost_nothing_but_time() {
    three_apart(|network, servers| {
        let all: Vec<&Server> = servers.iter().collect();
        let notary = Notary::start(&all, Load::LIGHT);
        notary.goes_on("the start", 100);
        notary.gap();
        for (n, millis) in [30, 700, 80, 1500, 200, 400, 50, 1000, 300, 1200].into_iter().enumerate() {
            // The leader of the moment and a follower in turn; both of its links, or one; both directions, or one.
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

/// A link that is slow, and loses some: the other follower makes the majority, and the slow one keeps up as it can.
#[test]
fn a_slow_link_slows_its_own_follower_only() {
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

/// Delays what this node sends by 80 ms, and loses a fiftieth of it, if the kernel knows how to.
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

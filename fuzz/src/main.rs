//! Runs the fuzz targets on stable Rust: first every input of the corpus, then seeded mutations of them for some time.
//! Unlike libFuzzer it does not see coverage, but it needs no tools, and the same seed makes the same run.
//!
//!     cargo run -p chiplog-fuzz -- [--seconds N] [--seed N] [--target NAME] [--input FILE]
//!
//! When a target panics, its input is stored in `fuzz/artifacts/TARGET-SEED-ROUND`; `--input` runs it again.

use chiplog_fuzz::{INPUT_BYTES_MAX, TARGETS, Target};
use clap::Parser;
use fastrand::Rng;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs the fuzz targets: their corpus, then mutations of it
#[derive(Parser)]
struct Arguments {
    /// Seconds of mutations, of each target
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    seconds: f64,
    /// The same seed makes the same mutations
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// This target alone
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// This input alone
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let is_chosen = |name: &str| arguments.target.as_deref().is_none_or(|t| t == name);
    let targets: Vec<_> = TARGETS.iter().filter(|(name, _)| is_chosen(name)).collect();
    let ran = if targets.is_empty() {
        let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
        Err(format!("no such target; there are {names:?}"))
    } else {
        targets.into_iter().try_for_each(|(name, target)| fuzz(name, *target, &arguments))
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("fuzz: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Replays one target's corpus, then mutates it until the time is up.
fn fuzz(name: &str, target: Target, arguments: &Arguments) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &Path| fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
    if let Some(path) = &arguments.input {
        target(&read(path)?);
        println!("{name}: {} passes", path.display());
        return Ok(());
    }
    let folder = root.join("corpus").join(name);
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    paths.sort(); // the same seed must make the same run
    let corpus = paths.iter().map(|p| read(p)).collect::<Result<Vec<_>, _>>()?;
    if corpus.is_empty() {
        return Err(format!("{} is empty", folder.display()));
    }
    let attempt = |input: &[u8], what: &str| {
        catch_unwind(AssertUnwindSafe(|| target(input))).map_err(|_| {
            let artifact = root.join("artifacts").join(format!("{name}-{what}"));
            let kept = fs::create_dir_all(root.join("artifacts")).and_then(|()| fs::write(&artifact, input));
            let place = kept.map_or_else(|e| format!("nowhere: {e}"), |()| artifact.display().to_string());
            format!("{name} failed on {what}; its input is in {place}")
        })
    };
    for (path, input) in paths.iter().zip(&corpus) {
        attempt(input, &format!("corpus-{}", path.file_name().unwrap_or_default().display()))?;
    }
    let began = Instant::now();
    let time = Duration::from_secs_f64(arguments.seconds);
    let mut random = Rng::with_seed(arguments.seed);
    let mut rounds = 0u64;
    while began.elapsed() < time {
        let input = mutate(&corpus, &mut random);
        attempt(&input, &format!("{}-{rounds}", arguments.seed))?;
        rounds += 1;
    }
    println!(
        "{name}: {} corpus inputs, {rounds} mutations (seed {}), no failure",
        corpus.len(),
        arguments.seed
    );
    Ok(())
}

/// Values at which lengths and counts often go wrong.
const EDGES: [u64; 12] =
    [0, 1, 2, 63, 64, 127, 128, 255, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0xffff_ffff_ffff_ffff];

/// One to eight changes to some input of the corpus.
fn mutate(corpus: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut bytes = corpus[random.usize(..corpus.len())].clone();
    for _ in 0..=random.usize(..8) {
        if bytes.is_empty() {
            bytes.push(random.u8(..));
        }
        let at = random.usize(..bytes.len());
        // In every format here the fields are in front.
        let at = if random.bool() { at % 80 % bytes.len() } else { at };
        match random.usize(..8) {
            0 => bytes[at] ^= 1 << random.usize(..8),
            1 => bytes[at] = random.u8(..),
            2 | 3 => {
                let value = EDGES[random.usize(..EDGES.len())].wrapping_add(random.u64(..3)).wrapping_sub(1);
                let width = [1, 2, 4, 8][random.usize(..4)];
                let at = at & !(width - 1);
                for (byte, new) in bytes[at..].iter_mut().zip(&value.to_le_bytes()[..width]) {
                    *byte = *new;
                }
            }
            4 => bytes.truncate(at),
            5 => {
                let end = (at + 1 + random.usize(..64)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = random.usize(..bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            6 => {
                let other = &corpus[random.usize(..corpus.len())];
                if !other.is_empty() {
                    let from = random.usize(..other.len());
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[from..]);
                }
            }
            _ => {
                let end = (at + 1 + random.usize(..32)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
    bytes.truncate(INPUT_BYTES_MAX);
    bytes
}

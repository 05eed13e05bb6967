//! Runs the fuzz targets on stable Rust: first every input of the corpus, then seeded mutations of them for some time.
//! Unlike libFuzzer it does not see coverage, but it needs no tools, and the same seed makes the same run.
//!
//!     cargo run -p chiplog-fuzz -- [--seconds N] [--seed N] [--target NAME] [--input FILE]
//!
//! When a target panics, its input is stored in `fuzz/artifacts/TARGET-SEED-ROUND`; `--input` runs it again.

use chiplog_fuzz::{INPUT_BYTES_MAX, TARGETS, Target};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

struct Arguments {
    seconds: f64,
    seed: u64,
    target: Option<String>,
    input: Option<PathBuf>,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments { seconds: 10.0, seed: 1, target: None, input: None };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<f64>().map_err(|_| format!("{name}: {value} is no number"));
        match name.as_str() {
            "--seconds" => parsed.seconds = number()?,
            "--seed" => parsed.seed = number()? as u64,
            "--target" => parsed.target = Some(value),
            "--input" => parsed.input = Some(value.into()),
            _ => {
                return Err(format!(
                    "unknown option {name}; there are --seconds, --seed, --target and --input"
                ));
            }
        }
    }
    Ok(parsed)
}

fn main() -> ExitCode {
    let run = || {
        let arguments = arguments()?;
        let chosen = |name: &str| arguments.target.as_deref().is_none_or(|t| t == name);
        let targets: Vec<_> = TARGETS.iter().filter(|(name, _)| chosen(name)).collect();
        if targets.is_empty() {
            return Err(format!(
                "no such target; there are {:?}",
                TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>()
            ));
        }
        targets.into_iter().try_for_each(|(name, target)| fuzz(name, *target, &arguments))
    };
    match run() {
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
    let mut random = Random(arguments.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
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

/// xorshift64*: small, and good enough to choose positions and values. Vigna, "An experimental exploration of
/// Marsaglia's xorshift generators, scrambled", 2016.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Values at which lengths and counts often go wrong.
const EDGES: [u64; 12] =
    [0, 1, 2, 63, 64, 127, 128, 255, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0xffff_ffff_ffff_ffff];

/// One to eight changes to some input of the corpus.
fn mutate(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(8) {
        if bytes.is_empty() {
            bytes.push(random.next() as u8);
        }
        let at = random.below(bytes.len());
        // In every format here the fields are in front.
        let at = if random.below(2) == 0 { at % 80 % bytes.len() } else { at };
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 | 3 => {
                let value =
                    EDGES[random.below(EDGES.len())].wrapping_add(random.below(3) as u64).wrapping_sub(1);
                let width = [1, 2, 4, 8][random.below(4)];
                let at = at & !(width - 1);
                for (byte, new) in bytes[at..].iter_mut().zip(&value.to_le_bytes()[..width]) {
                    *byte = *new;
                }
            }
            4 => bytes.truncate(at),
            5 => {
                let end = (at + 1 + random.below(64)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            6 => {
                let other = &corpus[random.below(corpus.len())];
                if !other.is_empty() {
                    let from = random.below(other.len());
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[from..]);
                }
            }
            _ => {
                let end = (at + 1 + random.below(32)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
    bytes.truncate(INPUT_BYTES_MAX);
    bytes
}

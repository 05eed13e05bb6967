//! Plain English: the words that texts of this project do not use, checked over comments, docs, messages and help texts of the
//! whole workspace. CONTRIBUTING.md has the reasons.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

/// A sentence names its subject. A question may begin with one of these.
const STARTS: [&str; 10] =
    ["Who", "Whoever", "Whose", "Whom", "What", "Whatever", "That which", "Of what", "Of which", "Of whom"];

/// Words that make a reader stop. "Such" is none of them: "there is no such record" is what systems say, and "such a body" is
/// shorter than any other name for what the sentence before described.
const WORDS: [&str; 20] = [
    "but for",
    "besides",
    "anew",
    "in vain",
    "as ever",
    "at the most",
    "so many",
    "errand",
    "errands",
    "mend",
    "mends",
    "mended",
    "mending",
    "mender",
    "bear with",
    "bears with",
    "hungry",
    "take note",
    "takes note",
    "thereof",
];

/// Folders and files with no text of ours.
const FOREIGN: [&str; 9] = [
    "target",
    ".git",
    "golden",
    "corpus",
    "data",
    "THIRD-PARTY.txt",
    "LICENSE",
    "mutants.json",
    "node_modules",
];

/// Files whose every line is text; of the others the comments and strings are.
const PROSE: [&str; 7] = ["md", "toml", "yml", "yaml", "sh", "service", "txt"];
const CODE: [&str; 9] = ["rs", "go", "java", "c", "h", "cpp", "proto", "py", "pyi"];

/// A word that is not used, and where it stands.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    line: usize,
    word: &'static str,
}

#[test]
fn texts_do_without_the_words_that_stop_a_reader() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    walk(root, &mut files);
    assert!(files.len() > 400, "only {} files were found below {}", files.len(), root.display());
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| !file.ends_with("core/tests/language.rs")) {
        let Ok(source) = fs::read_to_string(file) else { continue };
        let is_code = has_extension(file, &CODE);
        let shown = file.strip_prefix(root).unwrap().display();
        for fault in faults_of(&source, is_code, has_extension(file, &["py", "pyi"])) {
            let line = source.lines().nth(fault.line).unwrap().trim();
            faults.push(format!("{shown}:{}: {:?} in: {line}", fault.line + 1, fault.word));
        }
    }
    assert!(faults.is_empty(), "{} words to replace (CONTRIBUTING.md):\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn faults_are_found_in_comments_and_strings_and_nowhere_else() {
    let found = |source: &str| faults_of(source, true, false).into_iter().map(|f| f.word).collect::<Vec<_>>();
    assert_eq!(found("/// Who leads."), ["Who"]);
    assert_eq!(found("// It ends. What comes after stays."), ["What"]);
    assert_eq!(found("say(\"Whoever asks waits\")"), ["Whoever"]);
    assert_eq!(found("//! It is read anew, besides."), ["besides", "anew"]);
    assert_eq!(found("// nothing but\n// for this"), [""; 0], "two lines are not looked at together");
    assert_eq!(found("let anew = What::Who; // of a leader"), [""; 0]);
    assert_eq!(found("// What happens then? It ends."), [""; 0]);
    assert_eq!(found("// What happens\n// then? It ends."), [""; 0]);
    assert_eq!(found("// Whatsoever, renewed, somewhat"), [""; 0]);
    assert_eq!(faults_of("x = 1  # What is left", true, true).len(), 1);
    assert_eq!(faults_of("It is mended.", false, false), [Fault { line: 0, word: "mended" }]);
}

/// The words of a file that are not used.
fn faults_of(source: &str, is_code: bool, is_python: bool) -> Vec<Fault> {
    let texts: Vec<String> =
        source.lines().map(|line| if is_code { text_of(line, is_python) } else { line.into() }).collect();
    let mut faults = Vec::new();
    for (line, text) in texts.iter().enumerate() {
        let rest = || texts[line + 1..].iter().take(3).fold(String::new(), |all, next| all + next + " ");
        for word in STARTS {
            let asks = |at: usize| {
                let sentence = format!("{} {}", &text[at..], rest());
                sentence.find(['.', '!', '?', ';']).is_some_and(|end| sentence[end..].starts_with('?'))
            };
            let found = places(text, word).into_iter().filter(|at| !asks(*at));
            faults.extend(found.map(|_| Fault { line, word }));
        }
        let lower = text.to_ascii_lowercase();
        for word in WORDS {
            faults.extend(places(&lower, word).into_iter().map(|_| Fault { line, word }));
        }
    }
    faults
}

/// Where a word begins in a text. A part of a longer word or of a name is none.
fn places(text: &str, word: &str) -> Vec<usize> {
    let joins = |c: char| c.is_alphanumeric() || "_-:".contains(c);
    let is_free = |at: usize| {
        let before = text[..at].chars().next_back();
        let mut after = text[at + word.len()..].chars();
        let ends = match after.next() {
            Some(':') => after.next() != Some(':'),
            Some(c) => !joins(c),
            None => true,
        };
        ends && before.is_none_or(|c| !joins(c))
    };
    text.match_indices(word).map(|(at, _)| at).filter(|at| is_free(*at)).collect()
}

/// The comment and the strings of a line of code. A line with half a string is taken whole.
fn text_of(line: &str, is_python: bool) -> String {
    let mark = if is_python { "#" } else { "//" };
    let (mut text, mut in_string, mut escaped) = (String::new(), false, false);
    for (at, c) in line.char_indices() {
        if !in_string && line[at..].starts_with(mark) {
            return text + " " + &line[at + mark.len()..];
        }
        match (in_string, c) {
            (true, _) if escaped => escaped = false,
            (true, '\\') => escaped = true,
            (_, '"') => {
                in_string = !in_string;
                text.push(' ');
            }
            (true, c) => text.push(c),
            _ => {}
        }
    }
    let is_block = line.trim_start().starts_with(['*', '/']);
    if in_string || is_block { line.into() } else { text }
}

fn has_extension(file: &Path, extensions: &[&str]) -> bool {
    file.extension().is_some_and(|e| extensions.iter().any(|known| e == *known))
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // Links lead to files that are found elsewhere.
        if path.is_symlink() || FOREIGN.contains(&name.as_str()) || name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            walk(&path, files);
        } else if has_extension(&path, &PROSE) || has_extension(&path, &CODE) || name == "Makefile" {
            files.push(path);
        }
    }
}

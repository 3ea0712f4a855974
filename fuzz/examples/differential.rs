//! Runs random scripts against the stack and the kernel, and reports every difference that the list does not
//! explain.
//!
//! ```text
//! differential --kind sender|receiver --seed N --count M   run M scripts; default one
//!              --jobs N                                    number of concurrent scripts; default 12
//!              --minimise                                  drop events while a difference remains, and print the script
//!              --ignore CLASS                              ignore differences of a class, such as tcpi_rto; repeatable
//!              --equal                                     list the seeds for which both did the same
//! differential --kind sender|receiver --seed N --show      print a script and both results, up to the difference
//! differential FILE                                        the same for a script in a file
//! differential --list                                      print the explanations
//! ```
//!
//! It needs root, for network namespaces. Exit status: 0 if every difference is explained, 1 if not, 2 if the
//! kernel cannot be used or the arguments are wrong.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use brisk_fuzz::differential::{Kind, Reaction, Record, Verdict, explanations, generate, judge, minimise};

/// Events of an excerpt.
const EXCERPT: usize = 4;

struct Arguments {
    kind: Kind,
    seed: u64,
    count: u64,
    jobs: u64,
    show: bool,
    minimise: bool,
    list: bool,
    equal: bool,
    ignored: Vec<String>,
    file: Option<String>,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments {
        kind: Kind::Sender,
        seed: 1,
        count: 1,
        jobs: 12,
        show: false,
        minimise: false,
        list: false,
        equal: false,
        ignored: Vec::new(),
        file: None,
    };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let mut number = || {
            let value = given.next().unwrap_or_default();
            value.parse().map_err(|_| format!("{argument} {value}: it takes a number"))
        };
        match argument.as_str() {
            "--seed" => parsed.seed = number()?,
            "--count" => parsed.count = number()?,
            "--jobs" => parsed.jobs = number()?,
            "--equal" => parsed.equal = true,
            "--ignore" => parsed.ignored.extend(given.next()),
            "--show" => parsed.show = true,
            "--minimise" => parsed.minimise = true,
            "--list" => parsed.list = true,
            "--kind" => {
                parsed.kind = match given.next().as_deref() {
                    Some("sender") => Kind::Sender,
                    Some("receiver") => Kind::Receiver,
                    _ => return Err("--kind: it takes sender or receiver".to_owned()),
                }
            }
            _ if argument.starts_with("--") => return Err(format!("{argument} is not known")),
            _ => parsed.file = Some(argument),
        }
    }
    Ok(parsed)
}

fn main() {
    let arguments = arguments().unwrap_or_else(|error| {
        eprintln!("differential: {error}");
        std::process::exit(2);
    });
    if arguments.list {
        for entry in explanations() {
            println!("{}: {}", entry.name, entry.reason);
        }
        return;
    }
    if let Some(file) = &arguments.file {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| {
            eprintln!("differential: {file}: {error}");
            std::process::exit(2);
        });
        return show(&text, &arguments.ignored);
    }
    if arguments.show {
        return show(&generate(arguments.kind, arguments.seed).text(), &arguments.ignored);
    }
    std::process::exit(run(&arguments));
}

/// Prints a script, both results, and the verdict.
fn show(text: &str, ignored: &[String]) {
    println!("{text}");
    match judge(text, ignored) {
        Verdict::Differs(found) => {
            let (difference, ours, kernel) = *found;
            // The values of the next event are printed too.
            print!("{}", side_by_side(&ours, &kernel, difference.step + 1, usize::MAX));
            println!("{}: ours {}, kernel {}", difference.class(), difference.ours, difference.kernel);
        }
        verdict => println!("{verdict:?}"),
    }
}

/// Returns the packets of both in the last `events` events up to a step.
fn side_by_side(ours: &Record, kernel: &Record, last: usize, events: usize) -> String {
    let mut blocks = Vec::new();
    for (ours, kernel) in ours.steps.iter().zip(&kernel.steps).take(last + 1) {
        let mut block = String::new();
        if ours.event != "mark" {
            block += &format!("        {:.6} {}\n", ours.at as f64 / 1e6, ours.event);
        }
        for (name, step) in [("ours", ours), ("kernel", kernel)] {
            for reaction in &step.reactions {
                match reaction {
                    Reaction::Sent(packet) => block += &format!("{name:>7} {}\n", packet.line),
                    Reaction::Returned(value) => block += &format!("{name:>7} = {value}\n"),
                    Reaction::Values(values) => block += &shown_values(name, values),
                }
            }
        }
        if !block.is_empty() {
            blocks.push(block);
        }
    }
    blocks.split_off(blocks.len().saturating_sub(events)).concat()
}

/// The fields of TCP_INFO that are shown after every event.
const SHOWN: &[&str] = &[
    "ca_state",
    "snd_cwnd",
    "snd_ssthresh",
    "unacked",
    "sacked",
    "lost",
    "retrans",
    "reordering",
    "delivered",
    "rtt",
    "snd_wnd",
];

/// Returns a line of these values.
fn shown_values(name: &str, values: &[(String, Option<i64>)]) -> String {
    let shown = values.iter().filter(|(field, _)| SHOWN.contains(&field.as_str()));
    let shown: Vec<String> = shown.map(|(field, value)| format!("{field}={}", value.unwrap_or(-1))).collect();
    format!("{name:>7} {}\n", shown.join(" "))
}

#[derive(Default)]
struct Tally {
    /// Seeds of scripts for which both did the same.
    equal: Vec<u64>,
    explained: BTreeMap<&'static str, u64>,
    with_explanation: u64,
    late: u64,
    classes: BTreeMap<String, Vec<u64>>,
    unexplained: u64,
    broken: u64,
    skipped: Option<String>,
}

fn run(arguments: &Arguments) -> i32 {
    let next = AtomicU64::new(0);
    let tally = Mutex::new(Tally::default());
    let generating = Mutex::new(());
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= arguments.count {
                        return;
                    }
                    let seed = arguments.seed + n;
                    let script = {
                        // One at a time, because others would disturb the kernel's timing.
                        let _one = generating.lock().unwrap_or_else(PoisonError::into_inner);
                        generate(arguments.kind, seed)
                    };
                    let verdict = judge(&script.text(), &arguments.ignored);
                    let small = match &verdict {
                        Verdict::Differs(found) if arguments.minimise => {
                            Some(minimise(&script, &found.0.class(), &arguments.ignored).text())
                        }
                        _ => None,
                    };
                    note(&mut tally.lock().unwrap_or_else(PoisonError::into_inner), seed, verdict, small);
                }
            });
        }
    });
    let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(reason) = tally.skipped {
        println!("skipped: {reason}");
        return 2;
    }
    for (class, seeds) in &tally.classes {
        println!("{:5}  {class}: seeds {:?}", seeds.len(), &seeds[..seeds.len().min(12)]);
    }
    if arguments.equal {
        println!("equal: {:?}", tally.equal.iter().collect::<std::collections::BTreeSet<_>>());
    }
    for (name, count) in &tally.explained {
        println!("{count:5}  explained: {name}");
    }
    println!(
        "{} scripts: {} equal, {} with explained differences only, {} late, {} broken, {} unexplained",
        arguments.count,
        tally.equal.len(),
        tally.with_explanation,
        tally.late,
        tally.broken,
        tally.unexplained
    );
    i32::from(tally.unexplained + tally.broken > 0)
}

fn note(tally: &mut Tally, seed: u64, verdict: Verdict, small: Option<String>) {
    match verdict {
        Verdict::Agreed(explained) if explained.is_empty() => tally.equal.push(seed),
        Verdict::Agreed(explained) => {
            tally.with_explanation += 1;
            explained.into_iter().for_each(|name| *tally.explained.entry(name).or_default() += 1);
        }
        Verdict::Differs(found) => {
            let (difference, ours, kernel) = *found;
            tally.unexplained += 1;
            let class = difference.class();
            println!("seed {seed}: {class}: ours {}, kernel {}", difference.ours, difference.kernel);
            println!("{}", small.unwrap_or_else(|| side_by_side(&ours, &kernel, difference.step, EXCERPT)));
            tally.classes.entry(difference.class()).or_default().push(seed);
        }
        Verdict::Late => tally.late += 1,
        Verdict::Skipped(reason) => tally.skipped = Some(reason),
        Verdict::Broken(error) => {
            tally.broken += 1;
            println!("seed {seed}: broken: {error}");
        }
    }
}

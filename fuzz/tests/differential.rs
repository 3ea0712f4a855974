//! The comparison with the kernel: it finds a difference, explains one only if the reason holds, and both
//! agree in a few dozen scripts.

use std::sync::{LazyLock, Mutex};

use brisk_fuzz::differential::{
    Difference, Kind, Packet, Reaction, Record, Verdict, compare, explain, explanations, generate, judge,
    play_ours,
};

/// Seeds for which both stacks do the same except for explained differences. A script follows our stack:
/// after a change of the stack other seeds may be needed (`--example differential -- --equal`).
const SENDER_SEEDS: &[u64] = &[
    5, 8, 12, 14, 20, 23, 25, 31, 35, 41, 48, 51, 55, 57, 59, 62, 66, 73, 74, 80, 92, 94, 121, 135, 144, 147,
    548, 584, 690, 722, 776, 889,
];
const RECEIVER_SEEDS: &[u64] =
    &[3, 5, 8, 9, 13, 18, 20, 21, 23, 27, 28, 29, 31, 32, 35, 40, 44, 47, 48, 50, 545, 551, 685];

/// Records of scripts, with the step and the place in it of their first data segment.
static RECORDS: LazyLock<Vec<(Record, usize, usize)>> = LazyLock::new(|| {
    let read = |seed| {
        let record = play_ours(&generate(Kind::Sender, seed).text()).expect("a script");
        let data = record.steps.iter().enumerate().find_map(|(n, step)| {
            let at = step
                .reactions
                .iter()
                .position(|reaction| matches!(reaction, Reaction::Sent(packet) if packet.len > 0))?;
            Some((n, at))
        });
        data.map(|(step, at)| (record, step, at))
    };
    let records: Vec<_> = (1..12).filter_map(read).collect();
    assert!(records.len() > 5, "most scripts send");
    records
});

/// Returns unexplained differences if the kernel did the same except for its first data segment.
fn found(change: &dyn Fn(&mut Packet)) -> Vec<String> {
    let found = RECORDS.iter().map(|(ours, step, at)| {
        let mut kernel = ours.clone();
        if let Reaction::Sent(packet) = &mut kernel.steps[*step].reactions[*at] {
            change(packet);
        }
        let differences = compare(ours, &kernel);
        let unexplained = |difference: &&Difference| explain(difference, ours, &kernel).is_none();
        differences.iter().find(unexplained).map_or_else(String::new, Difference::class)
    });
    found.collect()
}

#[test]
fn equal_records_have_no_differences() {
    for (record, ..) in RECORDS.iter() {
        assert_eq!(compare(record, record), []);
    }
}

#[test]
fn each_planted_difference_of_a_segment_is_found_and_not_explained() {
    type Change = dyn Fn(&mut Packet);
    let planted: [(&str, &Change); 7] = [
        ("sequence number", &|packet| packet.seq += 1000),
        ("length", &|packet| packet.len -= 1),
        ("flags", &|packet| packet.flags.push('U')),
        ("acknowledgement number", &|packet| packet.ack = Some(99)),
        ("options", &|packet| packet.options.push("nop".to_owned())),
        ("window", &|packet| packet.win = 0),
        ("time", &|packet| packet.at += 200_000),
    ];
    for (field, change) in planted {
        for class in found(change) {
            assert_eq!(class, format!("{field} of data"));
        }
    }
}

#[test]
fn a_segment_that_one_stack_does_not_send_is_found_and_not_explained() {
    for (record, step, at) in RECORDS.iter() {
        let mut less = record.clone();
        // The last of its burst: after any other, the next one takes its place.
        let last = less.steps[*step]
            .reactions
            .iter()
            .rposition(|reaction| matches!(reaction, Reaction::Sent(_)))
            .unwrap_or(*at);
        less.steps[*step].reactions.remove(last);
        for (ours, kernel, class) in [(record, &less, "surplus data"), (&less, record, "missing data")] {
            let differences = compare(ours, kernel);
            assert_eq!(differences.iter().map(Difference::class).collect::<Vec<_>>(), [class]);
            assert!(explain(&differences[0], ours, kernel).is_none());
        }
    }
}

#[test]
fn a_planted_value_is_found_and_explained_by_no_entry() {
    for (record, ..) in RECORDS.iter() {
        for field in ["snd_cwnd", "ca_state", "unacked", "lost", "snd_ssthresh", "bytes_acked"] {
            let mut kernel = record.clone();
            let reactions = kernel.steps.iter_mut().flat_map(|step| &mut step.reactions);
            let values = reactions.filter_map(|reaction| {
                if let Reaction::Values(values) = reaction { Some(values) } else { None }
            });
            for (_, value) in values.flatten().filter(|(name, value)| name == field && value.is_some()) {
                *value = value.map(|value| value + 1);
            }
            let differences = compare(record, &kernel);
            let first = differences.first().expect("a difference");
            assert_eq!(first.class(), format!("tcpi_{field}"));
            assert!(explain(first, record, &kernel).is_none());
        }
    }
}

#[test]
fn every_explanation_has_a_reason_of_its_own() {
    for (n, entry) in explanations().enumerate() {
        assert!(entry.reason.contains("Linux") && entry.reason.len() > 60, "{}", entry.name);
        assert!(explanations().take(n).all(|other| other.name != entry.name), "{}", entry.name);
    }
}

/// Takes about ten seconds of real time, mostly asleep. A run on a too busy machine is not a difference.
#[test]
fn the_kernel_agrees() {
    let kinds = [(Kind::Sender, SENDER_SEEDS), (Kind::Receiver, RECEIVER_SEEDS)];
    let scripts = kinds.iter().flat_map(|(kind, seeds)| seeds.iter().map(|seed| (*kind, *seed)));
    let left = Mutex::new(scripts.collect::<Vec<_>>());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let Some((kind, seed)) = left.lock().expect("not poisoned").pop() else { return };
                    match judge(&generate(kind, seed).text(), &[]) {
                        Verdict::Agreed(_) => {}
                        Verdict::Late => println!("{kind:?} {seed}: the machine was too busy"),
                        Verdict::Skipped(reason) => return println!("skipped: {reason}"),
                        Verdict::Differs(found) => {
                            let (difference, ..) = *found;
                            let text = format!("{kind:?} {seed}: {}", difference.class());
                            failures.lock().expect("not poisoned").push(format!(
                                "{text}\n  ours   {}\n  kernel {}",
                                difference.ours, difference.kernel
                            ));
                        }
                        Verdict::Broken(error) => failures.lock().expect("not poisoned").push(error),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("not poisoned");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

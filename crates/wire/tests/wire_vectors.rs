//! The option vectors of `docs/wire/vectors.md`, read from the page and compared with the results of this
//! crate.

use brisk_wire::Gentle;
use brisk_wire::gentle::{EXPERIMENTAL_ID, Reading};

/// Returns the lines of the list with this name.
fn list(name: &str) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wire/vectors.md");
    let page = std::fs::read_to_string(page).expect("the page is in the repository");
    let begin = format!("```{name}");
    let lines = page.lines().skip_while(|line| **line != begin).skip(1);
    lines.take_while(|line| *line != "```").map(str::to_owned).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16));
    pairs.collect::<Result<_, _>>().expect("hexadecimal digits")
}

/// Returns the meaning of an option in the words of the page.
fn meaning(reading: Reading) -> String {
    match reading {
        Reading::Ignore => "ignore".to_owned(),
        Reading::Malformed => "malformed".to_owned(),
        Reading::Window(shift) => format!("window {shift}"),
        Reading::Option(option) => match option {
            Gentle::Capability(byte) => format!("capability {byte:02x}"),
            Gentle::Part { offset } => format!("part {offset}"),
            Gentle::Short { flags } => format!("short {flags:02x}"),
            Gentle::Fail { flags, lost_len } => format!("fail {flags:02x} {lost_len}"),
            Gentle::EncF1 { flags, enc_len } => format!("enc-F1 {flags:02x} {enc_len}"),
            Gentle::EncF2 { flags, enc_len, start_off, crc32c } => {
                format!("enc-F2 {flags:02x} {enc_len} {start_off} {crc32c:08x}")
            }
            Gentle::EncRs { flags, enc_len, start_off, crc32c, parity, parities } => {
                format!("enc-RS {flags:02x} {enc_len} {start_off} {crc32c:08x} {parity} {parities}")
            }
        },
    }
}

#[test]
fn options_are_read_and_written_as_the_page_says() {
    let vectors = list("options");
    assert!(vectors.len() > 30, "the list is found");
    for line in vectors {
        let mut words = line.splitn(3, ' ');
        let (Some(on), Some(hex), Some(expected)) = (words.next(), words.next(), words.next()) else {
            panic!("three columns: {line}");
        };
        let option = bytes(hex);
        assert_eq!((option[0], usize::from(option[1])), (254, option.len()), "{line}");
        assert_eq!(option[2..4], EXPERIMENTAL_ID.to_be_bytes(), "{line}");
        let reading = Gentle::read(&option[4..], on == "syn");
        assert_eq!(meaning(reading), expected, "{line}");
        if let Reading::Option(value) = reading {
            assert_eq!(value.value().as_slice(), &option[4..], "{line}");
        }
    }
}

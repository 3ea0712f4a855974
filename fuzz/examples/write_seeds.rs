//! Writes the seeds of every target to `fuzz/corpus/`: `cargo run -p brisk-fuzz --example write_seeds`

use std::path::Path;

fn main() -> std::io::Result<()> {
    for target in brisk_fuzz::TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        std::fs::create_dir_all(&directory)?;
        for (name, bytes) in brisk_fuzz::seeds::of(target.name) {
            std::fs::write(directory.join(name), bytes)?;
        }
    }
    Ok(())
}

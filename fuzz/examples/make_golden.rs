//! Writes the golden images into a folder: `cargo run -p maru-fuzz --example make_golden -- FOLDER`.
//!
//! An image that is there already is compared, never rewritten.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> std::io::Result<ExitCode> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: make_golden FOLDER");
        return Ok(ExitCode::from(2));
    };
    let mut code = ExitCode::SUCCESS;
    for golden in maru_fuzz::golden::images() {
        let path = folder.join(golden.name).with_extension("maru");
        match std::fs::read(&path) {
            Ok(there) if there == golden.bytes => println!("{}: as it was", path.display()),
            Ok(_) => {
                println!("{}: DIFFERS and is left alone", path.display());
                code = ExitCode::FAILURE;
            }
            Err(_) => {
                std::fs::write(&path, &golden.bytes)?;
                println!("{}: written, {} bytes", path.display(), golden.bytes.len());
            }
        }
    }
    Ok(code)
}

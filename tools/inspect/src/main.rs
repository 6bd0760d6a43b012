//! The binary: everything is in the library, so that tests and fuzzers can call it.

fn main() -> std::process::ExitCode {
    maru_inspect::cli::main()
}

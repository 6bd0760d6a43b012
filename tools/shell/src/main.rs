//! See the library of this package.

fn main() -> anyhow::Result<()> {
    maru_shell::run()
}

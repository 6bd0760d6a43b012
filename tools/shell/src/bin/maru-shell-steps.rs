//! `maru-shell` under a name of its own, for builds that can be stopped at a step.

fn main() -> anyhow::Result<()> {
    maru_shell::run()
}

//! What a guest needs before it can boot: an emulator, a kernel with its modules, and programs that need nothing else.
//!
//! Whatever cannot be had here ends in [`Missing`]: the run is skipped, with the reason and what to do about it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail};

use crate::initramfs::Archive;

/// Programs of the machine itself, and the Debian packages they come in.
const TOOLS: [(&str, &str); 2] = [("qemu-system-x86_64", "qemu-system-x86"), ("ndctl", "ndctl")];
/// The modules between a memory device of the firmware and `/dev/dax0.0`, in loading order.
const MODULES: [&str; 6] = ["libnvdimm", "nfit", "nd_btt", "nd_pmem", "device_dax", "dax_pmem"];
/// Programs of this repository that run in a guest.
const PROGRAMS: [(&str, &str); 3] =
    [("maru-shell", "maru-shell"), ("maru-inspect", "maru-inspect"), ("maru-two-hosts", "maru-two-hosts-guest")];
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Something that this machine does not have and this program may not install.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) String);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// What guests boot.
pub(crate) struct Boot {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
}

/// Gets everything together in `folder`.
pub(crate) fn prepare(folder: &Path, kernel_tree: Option<&Path>) -> anyhow::Result<Boot> {
    if !cfg!(target_arch = "x86_64") {
        bail!(Missing("the guests are x86-64 machines, and so has to be the one that runs them".to_owned()));
    }
    fs::create_dir_all(folder)?;
    install()?;
    let tree = match kernel_tree {
        Some(tree) => tree.to_owned(),
        None => unpacked_kernel(&folder.join("kernel"))?,
    };
    let kernel = only(&tree.join("boot"), "vmlinuz-")?;
    let modules = only(&tree.join("lib/modules"), "")?;
    let programs = build_programs()?;
    let initramfs = folder.join("initramfs");
    let mut archive = Archive::default();
    archive.node("dev/console", (5, 1));
    for (_, program) in PROGRAMS {
        let place = if program == "maru-two-hosts-guest" { "init".to_owned() } else { format!("bin/{program}") };
        archive.file(&place, &programs.join(program))?;
    }
    for (number, module) in MODULES.iter().enumerate() {
        let file = plain_module(&modules, module, folder)?;
        archive.file(&format!("modules/{number}-{module}.ko"), &file)?;
    }
    let ndctl = which("ndctl").ok_or_else(|| anyhow!("ndctl has gone"))?;
    for library in libraries_of(&ndctl)? {
        archive.file(library.to_string_lossy().trim_start_matches('/'), &library)?;
    }
    archive.file("bin/ndctl", &ndctl)?;
    fs::write(&initramfs, archive.finish())?;
    Ok(Boot { kernel, initramfs })
}

fn which(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .chain(["/usr/sbin".into(), "/usr/bin".into()])
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

fn said(command: &mut Command) -> anyhow::Result<String> {
    let ended = command.stdin(Stdio::null()).output().with_context(|| format!("start {command:?}"))?;
    if !ended.status.success() {
        bail!("{command:?}: {}: {}", ended.status, String::from_utf8_lossy(&ended.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

fn apt(arguments: &[&str]) -> Command {
    let mut apt = Command::new("apt-get");
    apt.args(["-q", "-y", "--no-install-recommends"]).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    apt
}

fn install() -> anyhow::Result<()> {
    let packages: Vec<&str> =
        TOOLS.iter().filter(|(tool, _)| which(tool).is_none()).map(|(_, package)| *package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    let ask = || Missing(format!("not installed: {0}; as root: apt-get install {0}", packages.join(" ")));
    if !nix::unistd::geteuid().is_root() || which("apt-get").is_none() {
        bail!(ask());
    }
    eprintln!("installing {}", packages.join(" "));
    let installed = said(&mut apt(&["update"])).and_then(|_| said(apt(&["install"]).args(&packages)));
    installed.map(drop).map_err(|error| anyhow!(Missing(format!("{} ({error:#})", ask()))))
}

/// The newest kernel package of the distribution, unpacked and not installed. Kept for the next run.
fn unpacked_kernel(folder: &Path) -> anyhow::Result<PathBuf> {
    let tree = folder.join("tree");
    if tree.join("boot").is_dir() && tree.join("lib/modules").is_dir() {
        return Ok(tree);
    }
    let without = |error: anyhow::Error| {
        anyhow!(Missing(format!(
            "no kernel to boot: {error:#}; unpack a Debian kernel package (dpkg -x FILE FOLDER) and say --kernel-tree FOLDER"
        )))
    };
    let get = || -> anyhow::Result<()> {
        fs::create_dir_all(folder)?;
        let named = || said(Command::new("apt-cache").args(["depends", "linux-image-amd64"]));
        let package_in = |text: String| {
            let words = text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            words.into_iter().find(|word| {
                word.starts_with("linux-image-") && word.ends_with("-amd64") && word != "linux-image-amd64"
            })
        };
        let mut package = named().ok().and_then(package_in);
        if package.is_none() && nix::unistd::geteuid().is_root() {
            said(&mut apt(&["update"]))?;
            package = package_in(named()?);
        }
        let package = package.ok_or_else(|| anyhow!("apt knows no linux-image-amd64"))?;
        eprintln!("downloading {package}");
        said(apt(&["download", &package]).current_dir(folder))?;
        let archive = only(folder, "linux-image-")?;
        // Under another name first, so that a half unpacked tree is never taken for a whole one.
        let half = folder.join("half");
        said(Command::new("dpkg").arg("-x").args([&archive, &half]))?;
        fs::remove_file(archive)?;
        fs::rename(half, &tree)?;
        Ok(())
    };
    get().map_err(without)?;
    Ok(tree)
}

/// The entry of a folder whose name starts so; the last one by name if there are several.
fn only(folder: &Path, start: &str) -> anyhow::Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("look into {}", folder.display()))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start)))
        .collect();
    found.sort();
    found.pop().ok_or_else(|| anyhow!("nothing named {start}* in {}", folder.display()))
}

/// A module as the kernel's loader takes it: newer packages hold it compressed.
fn plain_module(modules: &Path, name: &str, folder: &Path) -> anyhow::Result<PathBuf> {
    let mut folders = vec![modules.to_owned()];
    while let Some(here) = folders.pop() {
        for entry in fs::read_dir(&here)? {
            let path = entry?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if file == format!("{name}.ko") {
                return Ok(path);
            } else if let Some(form) = file.strip_prefix(&format!("{name}.ko.")) {
                let plain = folder.join(format!("{name}.ko"));
                let tool = if form == "zst" { "zstd" } else { "xz" };
                let ended =
                    Command::new(tool).arg("-dc").arg(&path).output().with_context(|| format!("start {tool}"))?;
                fs::write(&plain, ended.stdout)?;
                return Ok(plain);
            }
        }
    }
    bail!("the kernel package has no module {name}")
}

/// The shared libraries of a program, and its loader.
fn libraries_of(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let text = said(Command::new("ldd").arg(program))?;
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// Builds the guests' programs without shared libraries. Returns the folder that they are in.
fn build_programs() -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--target", TARGET]).current_dir(&root);
    for (package, program) in PROGRAMS {
        cargo.args(["-p", package, "--bin", program]);
    }
    // A named target keeps these flags, and what they build, away from the machine's own programs.
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols");
    said(&mut cargo).context("build the guests' programs")?;
    Ok(target.join(TARGET).join("debug"))
}

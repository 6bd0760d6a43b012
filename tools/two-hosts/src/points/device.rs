//! A character device: its size and alignment are not where a file's are, and what does not suit it is said by name.

use serde_json::{Value, json};

use super::World;
use crate::guest::{DEVICE, DEVICE_BYTES, Guest, Start};
use crate::report::Report;
use crate::slice::SLOT_BYTES;

const POINT: &str = "device";
const MIB: u64 = 1 << 20;
/// What the namespace was made with.
const ALIGN: u64 = 2 * MIB;
const RIGHT: [(&str, &str); 2] = [("CXL_DAX_DEVICE", DEVICE), ("CXL_DAX_SIZE", "254Mi")];

pub(super) fn run(world: &World<'_>, a: &Guest, b: &Guest, report: &mut Report) -> anyhow::Result<()> {
    for facts in &world.facts {
        let seen = facts["character_device"] == true && facts["driver"] == "device_dax" && facts["fstat_bytes"] == 0;
        let sized = facts["sysfs_bytes"] == DEVICE_BYTES && facts["sysfs_align"] == ALIGN;
        let found = format!(
            "{} B in sysfs, {} by fstat, Linux {}",
            facts["sysfs_bytes"], facts["fstat_bytes"], facts["kernel"]
        );
        report.check(POINT, "the kernel's own driver has the device", seen && sized, found);
    }
    environment(world, a, b, report)?;
    refusals(a, report)?;
    partitions(world, a, b, report)
}

fn environment(world: &World<'_>, a: &Guest, b: &Guest, report: &mut Report) -> anyhow::Result<()> {
    world.memory.wipe()?;
    let open = json!({ "op": "open", "env": true, "format": "if-absent", "slot_bytes": SLOT_BYTES });
    let shell = |guest| Guest::shell(guest, &[], Start { environment: &RIGHT, pid: None });
    let (one, two) = (shell(a)?, shell(b)?);
    let (made, found) = (one.good(open.clone())?, two.good(open)?);
    let right = made["outcome"] == "formatted"
        && made["length"] == DEVICE_BYTES
        && made["align"] == ALIGN
        && made["backing"] == "device-dax"
        && made["hosts"] == "many";
    let said = format!("length {}, align {}, {} hosts", made["length"], made["align"], made["hosts"]);
    report.check(POINT, "CXL_DAX_DEVICE and CXL_DAX_SIZE lead to all of it", right, said);
    let same = found["outcome"] == "attached" && found["region_id"] == made["region_id"];
    report.check(POINT, "the other host finds the same region there", same, found["region_id"].to_string());
    one.quit()?;
    two.quit()
}

/// A line that cannot be done, and what its refusal has to say.
struct Wrong {
    claim: &'static str,
    environment: &'static [(&'static str, &'static str)],
    line: Value,
    code: &'static str,
    words: &'static [&'static str],
}

fn refusals(guest: &Guest, report: &mut Report) -> anyhow::Result<()> {
    let env = || json!({ "op": "open", "env": true });
    let part = |offset: u64, length: u64| json!({ "op": "open", "region": DEVICE, "format": "if-absent", "offset": offset, "length": length });
    let wrong = |claim, environment, line, code, words| Wrong { claim, environment, line, code, words };
    let cases = [
        wrong("no CXL_DAX_DEVICE", &[], env(), "env_missing", &["CXL_DAX_DEVICE"]),
        wrong(
            "CXL_DAX_SIZE that the kernel does not confirm",
            &[("CXL_DAX_DEVICE", DEVICE), ("CXL_DAX_SIZE", "256Mi")],
            env(),
            "env_disagrees",
            &["CXL_DAX_SIZE", "268435456", "266338304"],
        ),
        wrong(
            "CXL_DAX_SIZE that is no size",
            &[("CXL_DAX_DEVICE", DEVICE), ("CXL_DAX_SIZE", "much")],
            env(),
            "env_unreadable",
            &["CXL_DAX_SIZE", "much"],
        ),
        wrong("a device that is not there", &[("CXL_DAX_DEVICE", "/dev/dax9.0")], env(), "not_found", &["/dev/dax9.0"]),
        wrong(
            "a character device of another kind",
            &[("CXL_DAX_DEVICE", "/dev/zero")],
            env(),
            "wrong_file_type",
            &["/dev/zero", "not device-dax"],
        ),
        wrong("an offset between pages of the device", &[], part(4096, 64 * MIB), "misaligned", &["4096", "2097152"]),
        wrong("a length between them", &[], part(0, 3 * MIB), "misaligned", &["3145728", "2097152"]),
        wrong("a partition of no bytes", &[], part(0, 0), "zero_length", &["length"]),
        wrong("an offset behind the end", &[], part(256 * MIB, 2 * MIB), "out_of_bounds", &["268435456", "266338304"]),
        wrong("a length over the end", &[], part(128 * MIB, 128 * MIB), "out_of_bounds", &["134217728", "266338304"]),
    ];
    for case in cases {
        let shell = guest.shell(&[], Start { environment: case.environment, pid: None })?;
        let answer = shell.ask(case.line)?;
        let text = answer["error"].as_str().unwrap_or_default();
        let named = answer["code"] == case.code && case.words.iter().all(|word| text.contains(word));
        report.check(POINT, &format!("refused by name: {}", case.claim), named, answer_text(&answer));
        shell.quit()?;
    }
    Ok(())
}

fn answer_text(answer: &Value) -> String {
    match answer["error"].as_str() {
        Some(text) => format!("{}: {text}", answer["code"].as_str().unwrap_or_default()),
        None => answer.to_string(),
    }
}

fn partitions(world: &World<'_>, a: &Guest, b: &Guest, report: &mut Report) -> anyhow::Result<()> {
    world.memory.wipe()?;
    let part = |offset: u64, format: &str| {
        json!({
            "op": "open", "region": DEVICE, "offset": offset, "length": 64 * MIB, "format": format,
            "slot_bytes": SLOT_BYTES, "sessions": 8,
        })
    };
    let (one, two) = (a.shell(&[], Start::default())?, b.shell(&[], Start::default())?);
    let first = one.good(part(0, "if-absent"))?;
    let second = two.good(part(64 * MIB, "if-absent"))?;
    let apart =
        first["region_id"] != second["region_id"] && first["length"] == 64 * MIB && second["length"] == 64 * MIB;
    report.check(
        POINT,
        "each host formats a partition of its own",
        apart,
        format!("{} and {}", first["region_id"], second["region_id"]),
    );
    let over = one.ask(part(32 * MIB, "if-absent"))?;
    report.check(POINT, "refused by name: a partition over two others", over["code"] == "overlap", answer_text(&over));

    // Each joins the other's partition: the same key there, with other bytes.
    let (there, here) = (one.good(part(64 * MIB, "never"))?, two.good(part(0, "never"))?);
    let found = there["region_id"] == second["region_id"] && here["region_id"] == first["region_id"];
    for (shell, seed) in [(&one, 1), (&two, 2)] {
        shell.good(json!({ "op": "session" }))?;
        shell.good(json!({ "op": "namespace", "example": true }))?;
        shell.good(json!({ "op": "store", "key": "same", "seed": seed, "len": 50_000 }))?;
    }
    let read = |shell: &crate::guest::Shell<'_>, seed| shell.good(json!({ "op": "get", "key": "same", "seed": seed }));
    let exact = read(&one, 1)?["matches"] == true && read(&two, 2)?["matches"] == true;
    one.quit()?;
    two.quit()?;
    // And after a change of places.
    let mut swapped = true;
    for (guest, offset, seed) in [(a, 0, 2), (b, 64 * MIB, 1)] {
        let shell = guest.shell(&[], Start::default())?;
        shell.good(part(offset, "never"))?;
        shell.good(json!({ "op": "namespace", "example": true }))?;
        swapped &= read(&shell, seed)?["matches"] == true;
        shell.quit()?;
    }
    report.check(
        POINT,
        "partitions hold each its own blocks, for both hosts",
        found && exact && swapped,
        "one key, two contents",
    );
    Ok(())
}

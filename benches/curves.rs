//! What does a lookup cost in a full region, and in a large one?
//!
//! 128 keys chosen without pattern, all there or all not there. One curve fills one region further and further: other
//! regions would lie in other memory, and on a virtual machine that alone can make one of them half as fast. The other
//! curve has regions of different size. Beside each point a bare table of 262,144 blocks takes turns with it
//! ([`maru_bench::contest`]): a point is a ratio to it, so that points measured at different times can be compared.
//!
//! `MARU_BENCH_SLOTS` sets the size of the region that is filled (default 1,048,576), `MARU_BENCH_MOST_SLOTS` the end of
//! the curve of sizes (default 4,194,304).

use std::cell::Cell;

use maru::ObjectId;
use maru_bench::Filled;
use maru_bench::contest::{Contest, Outcome, number_from};
use maru_bench::peers::Bare;
use serde_json::json;

const KEYS: usize = 128;
const TURNS: u64 = 512;
const FILL_PERCENT: [u64; 4] = [10, 50, 90, 99];

struct Reference {
    bare: Bare,
    requests: Vec<Vec<ObjectId>>,
}

fn point(question: &str, filled: &Filled, slots: u32, reference: &Reference) -> Outcome {
    let hits: Vec<_> = (0..TURNS).map(|turn| filled.present(KEYS, turn)).collect();
    let misses: Vec<_> = (0..TURNS).map(|turn| filled.absent(KEYS, turn)).collect();
    let (session, turn) = (&filled.session, Cell::new(0));
    let next = || turn.replace((turn.get() + 1) % TURNS as usize);
    Contest::new(question)
        .unit("128 keys")
        .fact("slots", slots)
        .fact("blocks", filled.blocks)
        .entry("hits", || assert_eq!(session.probe_prefix(&hits[next()]).expect("probe"), KEYS))
        .entry("misses", || {
            assert!(!session.probe_batch(&misses[next()]).expect("probe").iter().any(maru::Probe::is_hit));
        })
        .entry("bare table", || {
            let request = &reference.requests[next()];
            assert_eq!(reference.bare.count_ahead(request.iter().map(|object| &object.prefix)), KEYS);
        })
        .run()
}

/// How a curve's points compare with its first, each by way of the bare table.
fn compare(curve: &str, points: &[Outcome]) -> serde_json::Value {
    let against_bare = |point: &Outcome, what: &str| point.ratio(what, "bare table").expect("all took part").median;
    eprintln!("\n{curve}, times of the first point");
    let rows: Vec<_> = points
        .iter()
        .map(|point| {
            let [hits, misses] =
                ["hits", "misses"].map(|what| against_bare(point, what) / against_bare(&points[0], what));
            eprintln!("  {:<24} hits {hits:.2}  misses {misses:.2}", point.question);
            json!({ "point": point.question, "hits": hits, "misses": misses })
        })
        .collect();
    json!({ "curve": curve, "points": rows })
}

fn main() {
    let small = Filled::new(1 << 18);
    let reference =
        Reference { bare: Bare::new(&small), requests: (0..TURNS).map(|turn| small.present(KEYS, turn)).collect() };

    let slots = number_from("MARU_BENCH_SLOTS", 1 << 20) as u32;
    let mut filled = Filled::of(slots, 0);
    let fill: Vec<Outcome> = FILL_PERCENT
        .iter()
        .map(|percent| {
            filled.grow(u64::from(slots) * percent / 100);
            point(&format!("curve-fill-{percent}"), &filled, slots, &reference)
        })
        .collect();
    drop(filled);

    let most = number_from("MARU_BENCH_MOST_SLOTS", 1 << 22) as u32;
    let size: Vec<Outcome> = (10..)
        .step_by(2)
        .map(|power| 1u32 << power)
        .take_while(|slots| *slots <= most)
        .map(|slots| point(&format!("curve-size-{slots}"), &Filled::of(slots, slots / 10 * 9), slots, &reference))
        .collect();
    println!("{}", json!([compare("fill", &fill), compare("size", &size)]));
}

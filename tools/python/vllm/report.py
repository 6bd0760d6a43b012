"""Table and picture of a bench run, from its numbers and nothing else."""

import statistics

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
BLOCK = 128
SERIES = (  # tier, arm, words, colour
    ("T0", "cross", "computed again (T0)", "#8d99ae"),
    ("T1", "same", "own prefix cache, same engine (T1)", "#e0a458"),
    ("T1", "cross", "own prefix cache, other engine (T1)", "#c0d6df"),
    ("T4", "same", "Maru, same engine (T4)", "#2a9d8f"),
    ("T4", "cross", "Maru, other engine (T4)", "#264653"),
)


def cells(stats):
    """(tier, arm, tokens) -> the second requests' rows."""
    found = {}
    for row in stats["rows"]:
        found.setdefault((row["tier"], row["arm"], row["tokens"]), []).append(row)
    return found


def median(rows, key="second_ms"):
    return statistics.median(row[key] for row in rows)


def paired(above, below):
    """Ratios within one session."""
    of = {(row["repetition"], row["session"]): row["second_ms"] for row in below}
    return [row["second_ms"] / of[row["repetition"], row["session"]] for row in above]


def summary(stats):
    """What is to be reached, as numbers."""
    cell = cells(stats)
    lengths = sorted({tokens for _, _, tokens in cell})
    by_length = {}
    for n in lengths:
        t0, t4c, t1s = (
            median(cell[key]) for key in (("T0", "cross", n), ("T4", "cross", n), ("T1", "same", n))
        )
        by_length[str(n)] = {
            "speed_up": t0 / t4c,
            "cross_over_same": statistics.median(paired(cell["T4", "cross", n], cell["T4", "same", n])),
            "over_local_hit": t4c / t1s,
            "hit_rate": min(row["hit_rate"] for row in cell["T4", "cross", n]),
            "every_full_block": (n - 1) // BLOCK * BLOCK / n,
            "cross_ms": t4c,
            "cross_load_ms": median(cell["T4", "cross", n], "load_ms"),
        }
    return {"lengths": by_length, "lookup_us": stats["lookup_us"], **stats["controls"]}


def table(stats):
    cell, short = cells(stats), summary(stats)
    lines = [
        "| tokens | T0 computed | T1 same | T1 cross | T4 same | T4 cross | of that, loading | T0 / T4 cross | T4 cross / same | T4 cross / T1 same | T4 hit rate (every full block) |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for n, values in short["lengths"].items():
        ms = [median(cell[tier, arm, int(n)]) for tier, arm, _, _ in SERIES]
        t0, t1s, t1c, t4s, t4c = ms
        lines.append(
            f"| {int(n):,} | {t0:,.0f} ms | {t1s:,.0f} ms | {t1c:,.0f} ms | {t4s:,.0f} ms | {t4c:,.0f} ms | "
            f"{values['cross_load_ms']:,.0f} ms | {values['speed_up']:.1f} × | "
            f"{values['cross_over_same']:.2f} | {values['over_local_hit']:.2f} | {values['hit_rate']:.4f} ({values['every_full_block']:.4f}) |"
        )
    return "\n".join(lines)


def picture(stats):
    import math

    cell = cells(stats)
    lengths = sorted({tokens for _, _, tokens in cell})
    values = [median(cell[tier, arm, n]) for tier, arm, _, _ in SERIES for n in lengths]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
    left, top, width, height, bar = 60, 40, 640, 260, 22

    def y(value):
        return top + height * (1 - (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low)))

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {top + height + 130}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="22" font-size="14">Time to the first token of a prompt that was computed before (median, log scale)</text>',
    ]
    power = low
    while power <= high:
        out.append(f'<line x1="{left}" x2="{left + width}" y1="{y(power):.1f}" y2="{y(power):.1f}" stroke="#ddd"/>')
        label = f"{power / 1000:g} s" if power >= 1000 else f"{power:g} ms"
        out.append(f'<text x="{left - 6}" y="{y(power) + 4:.1f}" text-anchor="end">{label}</text>')
        power *= 10
    group = width / len(lengths)
    for g, n in enumerate(lengths):
        start = left + g * group + (group - bar * len(SERIES)) / 2
        for s, (tier, arm, words, colour) in enumerate(SERIES):
            rows = cell[tier, arm, n]
            value, x = median(rows), start + s * bar
            out.append(
                f'<rect x="{x:.1f}" y="{y(value):.1f}" width="{bar - 3}" height="{top + height - y(value):.1f}" fill="{colour}">'
                f"<title>{words}, {n} tokens: {value:.0f} ms</title></rect>"
            )
            least, most = (limit(row["second_ms"] for row in rows) for limit in (min, max))
            middle = x + (bar - 3) / 2
            out.append(
                f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{y(least):.1f}" y2="{y(most):.1f}" stroke="black"/>'
            )
        out.append(
            f'<text x="{left + (g + 0.5) * group:.1f}" y="{top + height + 18}" text-anchor="middle">{n:,} tokens</text>'
        )
    for s, (_, _, words, colour) in enumerate(SERIES):
        x, row = left + (s % 2) * 330, top + height + 44 + (s // 2) * 22
        out.append(
            f'<rect x="{x}" y="{row - 11}" width="14" height="14" fill="{colour}"/><text x="{x + 20}" y="{row + 1}">{words}</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


def write(stats, readme, svg):
    svg.write_text(picture(stats))
    controls = stats["controls"]
    text = "\n".join(
        [
            BEGIN,
            f"Run of {stats['date']}: model `{stats['model']}`, bf16, {stats['cores']} cores (one an engine), {stats['repetitions']} repetitions with "
            f"{stats['sessions']} sessions a cell (1 where all is computed again), {stats['seconds'] / 60:.0f} minutes; load of the machine {stats['load_before']:.1f} before and "
            f"{stats['load_after']:.1f} after. Medians, cross / same of pairs within a session; the picture has the spread.",
            "",
            table(stats),
            "",
            f"![time to the first token]({svg.relative_to(readme.parent)})",
            "",
            f"Scheduler's lookup of 8,192 tokens: {stats['lookup_us']:.0f} µs (median of 1,000). Controls: hit rate of first requests at most "
            f"{controls['leak_rate_max']:.3f}; {controls['never_stored']} never-stored prompts, no hit; each T4 run had one region, formatted once and "
            f"attached once ({len(controls['regions'])} runs).",
            END,
        ]
    )
    old = readme.read_text()
    before, found, rest = old.partition(BEGIN)
    if not found or END not in rest:
        raise SystemExit(f"{readme}: found no {BEGIN} .. {END} to write between")
    readme.write_text(before + text + rest.partition(END)[2])

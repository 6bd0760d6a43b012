//! JSON lines: what `kind` there is, and the lines about a region as a whole.

use serde::Serialize;

/// One JSON line.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line<'a> {
    /// Identity and geometry.
    Region(Box<RegionLine>),
    /// Accounts.
    Usage(crate::tally::UsageLine),
    /// A slot.
    Slot(Box<crate::dump::SlotLine>),
    /// A session entry.
    Session(Box<crate::sessions::SessionLine>),
    /// A lease cell.
    Lease(crate::leases::LeaseLine),
    /// A namespace row.
    Namespace(Box<crate::namespaces::NamespaceLine>),
    /// A remembered operation.
    Record(Box<crate::log::RecordLine>),
    /// A row of the slot map.
    Map(crate::map::MapLine),
    /// A line of its legend.
    Legend(crate::map::LegendLine),
    /// Why a block is a hit or a miss.
    Why(Box<crate::why::WhyLine>),
    /// A prefix, block by block.
    Strip(crate::why::strip::StripLine),
    /// A look of `watch`.
    Sample(Box<crate::watch::plain::SampleLine>),
    /// A sample of `metrics`.
    Metric(crate::metrics::MetricLine<'a>),
    /// What an operator's verb would do.
    Plan(Box<crate::operate::PlanLine>),
    /// What it has done.
    Change(Box<crate::operate::ChangeLine>),
    /// A finding.
    Finding(&'a crate::findings::Finding),
    /// The last line.
    Summary(Box<crate::run::SummaryLine>),
    /// The last line of a verb that acts.
    #[serde(rename = "summary")]
    Outcome(Box<crate::operate::OutcomeLine>),
}

/// Identity and geometry of a region.
#[derive(Serialize)]
pub struct RegionLine {
    /// Path, where there is one.
    pub path: Option<String>,
    /// Partition offset.
    pub offset_bytes: u64,
    /// Kind of backing.
    pub backing: &'static str,
    /// Bytes of the backing from the region's first byte on.
    pub backing_bytes: u64,
    /// Random id.
    pub region_id: String,
    /// Incarnation.
    pub incarnation: u64,
    /// Format version.
    pub format_version: u32,
    /// State of the format word.
    pub format_state: String,
    /// Feature words.
    pub features: Features,
    /// Regime.
    pub regime: &'static str,
    /// Hosts.
    pub hosts: &'static str,
    /// Length of the region.
    pub length_bytes: u64,
    /// Bytes before the payload.
    pub header_bytes: u64,
    /// Alignment.
    pub align_bytes: u64,
    /// Slots.
    pub slot_count: u32,
    /// Buckets.
    pub bucket_count: u32,
    /// Session entries.
    pub session_count: u32,
    /// Bytes of a session area.
    pub session_area_bytes: u64,
    /// Lease cells of a session.
    pub lease_cells: u32,
    /// Namespace rows.
    pub namespace_count: u32,
    /// Budget tokens.
    pub token_count: u32,
    /// Copy lease.
    pub copy_lease_ms: u32,
    /// Stalled writer.
    pub stalled_writer_ms: u32,
    /// Attach wait.
    pub attach_wait_ms: u32,
    /// Everything but slots and unused tail, per slot; see [`crate::stat`].
    pub metadata_bytes_per_slot: f64,
    /// Wall clock of the formatting.
    pub formatted_ns: u64,
    /// Host of the formatter.
    pub formatter_host: String,
    /// The formatter's configuration text.
    pub config: String,
    /// Name of the pool.
    pub pool: Option<PoolLine>,
    /// Slot classes.
    pub classes: Vec<ClassLine>,
    /// Section table.
    pub sections: Vec<SectionLine>,
    /// The copy at the end stands in for a damaged superblock.
    pub from_copy: bool,
}

/// Feature words.
#[derive(Serialize)]
pub struct Features {
    /// Readers must know.
    pub read: u64,
    /// Writers must know.
    pub write: u64,
    /// Anyone may ignore.
    pub ignorable: u64,
}

/// The pool entry.
#[derive(Serialize)]
pub struct PoolLine {
    /// Name for people.
    pub name: String,
    /// Medium.
    pub medium: &'static str,
    /// Tier.
    pub tier: u8,
    /// Scope.
    pub scope: &'static str,
}

/// A slot class.
#[derive(Serialize)]
pub struct ClassLine {
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Slots.
    pub slot_count: u32,
    /// First slot.
    pub first_slot: u32,
    /// First payload byte.
    pub payload_offset_bytes: u64,
}

/// A section.
#[derive(Serialize)]
pub struct SectionLine {
    /// Name.
    pub name: &'static str,
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes.
    pub length_bytes: u64,
    /// Elements.
    pub count: u64,
}

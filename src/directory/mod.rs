//! The index: from an object id to the slots that may hold it.
//!
//! Two candidate lines of seven entries and a mark (papers call it two-choice hashing with bounded buckets).
//! An entry names slot, short generation and a nine-bit tag; identity is always compared in full in the
//! record, so an entry is a hint that can be wrong and is never believed.
//!
//! * I1: an entry is put into the first bucket unless that is full, then into the second.
//! * I2: the mark of a bucket counts the entries that lie in second buckets because this one was full. It is
//!   raised before such an entry appears and lowered by whoever's compare-and-swap removed one, so it is never
//!   too low; a death between the two leaves it too high, which costs readers a line and nothing else.
//! * I3: a reader loads the first bucket's entries, then its mark, and looks at the second bucket only if the
//!   mark is not zero. With I2: an entry that was there before the reader came is seen.
//! * I4: an entry whose slot has moved on ("stale") is removed by whoever needs the place, with a
//!   compare-and-swap on its exact bits. Removal of one entry hides no other.
//! * I5: an entry moves only from its first to its second bucket: copied there (I2), then removed here. A
//!   reader finds it in one of the two.
//!
//! | file | does |
//! | --- | --- |
//! | `find.rs` | looks for an object |
//! | `insert.rs` | puts an entry in, makes room, removes entries |
//! | `prefix.rs` | answers for the keys of a whole request, with all lines under way at once |

mod find;
mod insert;
mod prefix;

pub(crate) use find::Sighting;

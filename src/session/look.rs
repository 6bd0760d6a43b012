//! Looking: what a session and a reader without an entry answer in the same way.

use core::ops::{ControlFlow, Range};

use maru_layout::table::Counter;

use super::{Dispatch, not_lost, on};
use crate::region::Inner;
use crate::{CallError, NamespaceId, NamespaceUsage, ObjectId, Probe, Why};

pub(super) fn namespace_usage(
    inner: &Inner,
    dispatch: &Dispatch,
    namespace: &NamespaceId,
) -> Result<NamespaceUsage, CallError> {
    let spent_tokens = on!(dispatch, e => {
        e.check_origin(namespace)?;
        e.purse(namespace.row).map_or(0, |purse| e.spent_tokens(purse))
    });
    let usage = NamespaceUsage { spent_tokens, ..crate::region::namespace_usage(&inner.tables, namespace.row) };
    not_lost(inner)?;
    Ok(usage)
}

pub(super) fn probe(dispatch: &Dispatch, object: &ObjectId) -> Result<Probe, CallError> {
    on!(dispatch, e => {
        let found = e.find_one(&object.key());
        e.count(Counter::Probed, 1);
        // Invalidated before or meanwhile: what was found under the old generation does not count.
        if !e.check_namespace(&object.namespace)? {
            return Ok(Probe::Miss(Why::Invalidated));
        }
        Ok(match found {
            Ok(sighting) => {
                e.count(Counter::ProbeHits, 1);
                Probe::Hit { len: e.bounded_length(&sighting) }
            }
            Err(why) => Probe::Miss(why),
        })
    })
}

pub(super) fn probe_batch(dispatch: &Dispatch, objects: &[ObjectId]) -> Result<Vec<Probe>, CallError> {
    on!(dispatch, e => {
        let mut answers = Vec::with_capacity(objects.len());
        let mut hits = 0;
        e.find_each(objects, |_, found| {
            answers.push(match found {
                Ok(sighting) => {
                    hits += 1;
                    Probe::Hit { len: e.bounded_length(&sighting) }
                }
                Err(why) => Probe::Miss(why),
            });
            ControlFlow::Continue(())
        });
        e.count(Counter::Probed, objects.len() as u64);
        // Invalidated before or meanwhile: what was found under the old generation does not count.
        each_namespace(objects, |run, namespace| {
            if !e.check_namespace(namespace)? {
                let answers = &mut answers[run];
                hits -= answers.iter().filter(|answer| answer.is_hit()).count() as u64;
                answers.iter_mut().for_each(|answer| *answer = Probe::Miss(Why::Invalidated));
            }
            Ok(())
        })?;
        e.count(Counter::ProbeHits, hits);
        Ok(answers)
    })
}

pub(super) fn probe_prefix(dispatch: &Dispatch, objects: &[ObjectId]) -> Result<usize, CallError> {
    on!(dispatch, e => {
        let mut run = e.leading_run(objects);
        // Invalidated before or meanwhile: what was found under the old generation does not count.
        each_namespace(objects, |objects, namespace| {
            if objects.start < run && !e.check_namespace(namespace)? {
                run = objects.start;
            }
            e.check_origin(namespace)
        })?;
        e.count(Counter::Probed, objects.len() as u64);
        e.count(Counter::ProbeHits, run as u64);
        Ok(run)
    })
}

/// Calls `each` for every run of objects of one namespace, until it refuses one.
pub(super) fn each_namespace(
    objects: &[ObjectId],
    mut each: impl FnMut(Range<usize>, &NamespaceId) -> Result<(), CallError>,
) -> Result<(), CallError> {
    let mut start = 0;
    for run in objects.chunk_by(|left, right| left.namespace == right.namespace) {
        each(start..start + run.len(), &run[0].namespace)?;
        start += run.len();
    }
    Ok(())
}

//! Accounts as dictionaries, with the names that the tools print.

use maru::layout::word::SlotState;
use maru::{NamespaceUsage, Usage};
use pyo3::prelude::*;
use pyo3::types::PyDict;

fn states<'py>(py: Python<'py>, slots: &[u32; 7]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (state, count) in SlotState::ALL.iter().zip(slots) {
        dict.set_item(state.name(), count)?;
    }
    Ok(dict)
}

/// Accounts of a region.
pub(crate) fn of_region<'py>(py: Python<'py>, usage: &Usage) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in [
        ("capacity_bytes", usage.capacity_bytes),
        ("reserved_bytes", usage.reserved_bytes),
        ("allocated_bytes", usage.allocated_bytes),
        ("ready_bytes", usage.ready_bytes),
        ("ready_allocated_bytes", usage.ready_allocated_bytes),
        ("retiring_bytes", usage.retiring_bytes),
        ("writing_bytes", usage.writing_bytes),
        ("quarantined_bytes", usage.quarantined_bytes),
        ("pinned_bytes", usage.pinned_bytes),
        ("capacity_slots", usage.capacity_slots.into()),
        ("damaged_slots", usage.damaged_slots.into()),
    ] {
        dict.set_item(name, value)?;
    }
    dict.set_item("slots", states(py, &usage.slots)?)?;
    Ok(dict)
}

/// Accounts of a namespace.
pub(crate) fn of_namespace<'py>(py: Python<'py>, usage: &NamespaceUsage) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("budget_slots", usage.budget_slots)?;
    dict.set_item("spent_tokens", usage.spent_tokens)?;
    dict.set_item("allocated_bytes", usage.allocated_bytes)?;
    dict.set_item("ready_bytes", usage.ready_bytes)?;
    dict.set_item("slots", states(py, &usage.slots)?)?;
    Ok(dict)
}

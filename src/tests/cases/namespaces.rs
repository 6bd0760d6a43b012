//! Blocks of equal tokens that are not the same.
//!
//! * Symptom: two sets of weights under one served name load each other's blocks; engines that hash with different seeds
//!   share nothing, and nobody says so.
//! * Cause: what makes blocks interchangeable is not part of their name, or is glued to one text that reads two ways, or
//!   may be left out.

use super::load;
use crate::tests::{Scratch, namespace, object, payload, store};
use crate::{Namespace, NamespaceError, Role, Why, Wish};

const FIELDS: [&str; 12] = [
    "tenant",
    "model",
    "revision",
    "adapter",
    "dtype",
    "quantization",
    "geometry",
    "storage_format",
    "block_tokens",
    "parallel",
    "hash_algorithm",
    "hash_seed",
];

#[test]
fn namespaces_that_differ_in_one_field_share_nothing() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish { namespaces: Some(64), ..Wish::of_slots(1 << 20, 1024) });
    let a = region.session("a", Role::Worker).expect("attach");
    let b = region.session("b", Role::Worker).expect("attach");
    let base = namespace("t");
    let ns = a.namespace(&base).expect("namespace");
    let (mine, theirs) = (vec![0xAA; 1000], vec![0xBB; 1000]);
    for number in 0..4 {
        assert_eq!(store(&a, &object(ns, number), &mine), "stored");
    }
    for field in FIELDS {
        let other = base.clone().field(field, "17").expect("a field");
        let other = b.namespace(&other).expect("namespace");
        assert_ne!(other, ns, "{field}");
        for number in 0..4 {
            assert_eq!(load(&b, &object(other, number)), Err(Why::Absent), "{field}");
            assert_eq!(store(&b, &object(other, number), &theirs), "stored", "{field}");
            assert_eq!(load(&b, &object(other, number)), Ok(theirs.clone()), "{field}");
            assert_eq!(load(&a, &object(ns, number)), Ok(mine.clone()), "{field}");
        }
        // The ids are the region's, not the session's.
        assert_eq!(load(&a, &object(other, 0)), Ok(theirs.clone()), "{field}");
    }
    // Equal in all fields is the same, whoever says it and in whatever order.
    let mut again = Namespace::new();
    for field in FIELDS.iter().rev() {
        let value = match *field {
            "tenant" => "t",
            "model" => "m",
            "revision" | "hash_seed" => {
                if *field == "revision" {
                    "1"
                } else {
                    "0"
                }
            }
            "adapter" | "quantization" => "none",
            "dtype" => "bf16",
            "geometry" => "layers=2",
            "storage_format" => "test-1",
            "block_tokens" => "16",
            "parallel" => "tp=1",
            _ => "sha256",
        };
        again = again.field(field, value).expect("a field");
    }
    assert_eq!(b.namespace(&again).expect("namespace"), ns);
    assert_eq!(load(&b, &object(ns, 0)), Ok(mine));
}

#[test]
fn fields_whose_joined_text_is_equal_share_nothing() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish { namespaces: Some(64), ..Wish::of_slots(1 << 20, 1024) });
    let session = region.session("a", Role::Worker).expect("attach");
    for (round, (left, right)) in [
        (("a", "bc"), ("ab", "c")),
        (("a", "b\nrevision=2"), ("a\nmodel=b", "2")),
        (("a=", "b"), ("a", "=b")),
        (("a%", "3D"), ("a", "%3D")),
        (("a%3D", "b"), ("a=", "b")),
        (("a\n", "b"), ("a", "\nb")),
        (("a ", "b"), ("a", " b")),
        (("a\0", "b"), ("a", "\0b")),
        (("\u{e9}", "b"), ("e\u{301}", "b")),
    ]
    .into_iter()
    .enumerate()
    {
        let register = |(tenant, model): (&str, &str)| {
            session.namespace(&namespace("t").tenant(tenant).model(model)).expect("namespace")
        };
        let (left, right) = (register(left), register(right));
        assert_ne!((left.row(), left.digest()), (right.row(), right.digest()), "{round}");
        let (key, bytes) = (round as u64, payload(round as u64, 500));
        assert_eq!(store(&session, &object(left, key), &bytes), "stored", "{round}");
        assert_eq!(load(&session, &object(right, key)), Err(Why::Absent), "{round}");
        assert_eq!(load(&session, &object(left, key)), Ok(bytes), "{round}");
    }
}

#[test]
fn an_incomplete_namespace_is_refused_by_the_field_that_is_missing() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish::of_slots(1 << 20, 1024));
    let session = region.session("a", Role::Worker).expect("attach");
    for missing in FIELDS {
        let namespace = FIELDS
            .iter()
            .filter(|field| **field != missing)
            .fold(Namespace::new(), |namespace, field| namespace.field(field, "1").expect("a field"));
        match session.namespace(&namespace) {
            Err(NamespaceError::Missing { field, example }) => {
                assert_eq!(field, missing);
                assert!(example.starts_with(missing), "{example}");
            }
            other => panic!("{missing}: {other:?}"),
        }
        // Empty is as good as missing, and a placeholder for "unset" is the caller's to choose, not ours.
        match session.namespace(&namespace.field(missing, "").expect("a field")) {
            Err(NamespaceError::Field { field, .. }) => assert_eq!(field, missing),
            other => panic!("{missing}: {other:?}"),
        }
    }
    assert!(matches!(session.namespace(&Namespace::new()), Err(NamespaceError::Missing { field: "tenant", .. })));
    assert!(matches!(
        session.namespace(&namespace("t").model("x".repeat(1000))),
        Err(NamespaceError::TooLong { max_bytes: 928, .. })
    ));
}

#[test]
fn a_full_table_of_namespaces_says_so_and_keeps_what_it_has() {
    let scratch = Scratch::new();
    let region = scratch.region(Wish { namespaces: Some(4), ..Wish::of_slots(1 << 20, 1024) });
    let session = region.session("a", Role::Worker).expect("attach");
    let ids: Vec<_> =
        (0..4).map(|number| session.namespace(&namespace(&number.to_string())).expect("namespace")).collect();
    for number in 4..8 {
        let refused = session.namespace(&namespace(&number.to_string())).expect_err("full");
        assert_eq!(refused, NamespaceError::Full { rows: 4 });
    }
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(session.namespace(&namespace(&number.to_string())).expect("namespace"), *id);
        assert_eq!(store(&session, &object(*id, 0), &payload(number as u64, 10)), "stored");
    }
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(load(&session, &object(*id, 0)), Ok(payload(number as u64, 10)));
    }
}

//! Decisions, case by case.

use super::*;
use crate::known::Seen;

const NOW: u64 = 1_800_000_000;

fn place(number: u64) -> Place {
    Place {
        service: "qwen".to_owned(),
        slot: format!("fleet-{number:016x}"),
    }
}

fn listed(number: u64, tag: &str, age_s: u64) -> Listed {
    Listed {
        place: place(number),
        tag: tag.to_owned(),
        size: 1000,
        modified_s: NOW - age_s,
    }
}

fn quality(loads: u32, made_s: u64) -> Quality {
    Quality { loads, made_s }
}

fn own(number: u64, loads: u32, made_s: u64) -> Own {
    Own {
        place: place(number),
        node: "here".to_owned(),
        quality: quality(loads, made_s),
    }
}

fn known(objects: &[(&Listed, Content)]) -> Known {
    let mut known = Known::default();
    for (object, content) in objects {
        let version = Version {
            e_tag: Some(object.tag.clone()),
            version: None,
        };
        let seen = Seen {
            tag: object.tag.clone(),
            version,
            content: content.clone(),
        };
        known.see(object.place.clone(), seen);
    }
    known
}

fn numbers(objects: &[Listed]) -> Vec<u64> {
    let number = |it: &Listed| u64::from_str_radix(&it.place.slot[6..], 16).expect("a number");
    objects.iter().map(number).collect()
}

#[test]
fn new_and_missing_templates_are_fetched_newest_first() {
    let all = [
        listed(1, "a", 50),
        listed(2, "b", 10),
        listed(3, "c", 30),
        listed(4, "d", 20),
    ];
    let template = || Content::Template(quality(1, 1));
    let older = listed(3, "b", 90);
    let known = known(&[
        (&all[0], template()),
        (&older, template()),
        (&all[3], Content::Refused("damaged".to_owned())),
    ]);
    let held = BTreeSet::from([place(1), place(3), place(9)]);
    let plan = incoming(&all, &known, &held, 1 << 20);
    assert_eq!(numbers(&plan.fetch), [2, 3], "not what was refused");
    assert_eq!(plan.drop, [place(9)]);
    let plan = incoming(&all, &known, &BTreeSet::new(), 1 << 20);
    assert_eq!(numbers(&plan.fetch), [2, 3, 1], "it is no longer here");
}

#[test]
fn held_templates_stay_within_the_budget() {
    let mut all = vec![listed(1, "a", 50), listed(2, "b", 10), listed(3, "c", 30)];
    let held = BTreeSet::from([place(1)]);
    let plan = incoming(&all, &Known::default(), &held, 2500);
    assert_eq!(numbers(&plan.fetch), [2, 3]);
    assert_eq!((plan.drop, plan.left), (vec![place(1)], 1));
    all[1].size = u64::MAX;
    let plan = incoming(&all, &Known::default(), &held, u64::MAX);
    assert_eq!(numbers(&plan.fetch), [3, 1], "no template is that large");
}

/// What is put where the storage has an object of this content and age, and this node a template of this quality.
fn put(content: Content, age_s: u64, loads: u32, made_s: u64, same: bool) -> Option<Put> {
    let object = listed(1, "a", age_s);
    let known = known(&[(&object, content)]);
    let mut puts = outgoing(NOW, &[object], &known, &[own(1, loads, made_s)], |_, _| {
        same
    });
    assert!(puts.len() <= 1);
    puts.pop()
}

#[test]
fn a_better_template_is_never_replaced_by_a_worse_one() {
    let proven = |made_s| Content::Template(quality(2, made_s));
    let old = SETTLED.as_secs() + 1;
    let instead = put(proven(5), old, 2, 6, false).and_then(|it| it.instead);
    let version = instead.expect("a fresher one that differs");
    assert_eq!(version.e_tag.as_deref(), Some("a"));
    assert_eq!(put(proven(5), old, 2, 6, true), None, "they say the same");
    assert_eq!(put(proven(5), old, 2, 5, false), None, "it is not fresher");
    assert_eq!(put(proven(5), old - 2, 2, 6, false), None, "too soon");
    assert_eq!(put(proven(5), old, 1, 6, false), None, "not proven");
    assert_eq!(put(proven(5), old, 0, 6, false), None, "wrong");
    let unproven = |made_s| Content::Template(quality(1, made_s));
    assert!(
        put(unproven(5), 0, 2, 4, true).is_some(),
        "a load has proven it"
    );
    assert_eq!(put(unproven(5), old, 1, 6, false), None);
    let refused = || Content::Refused("damaged".to_owned());
    assert!(put(refused(), 0, 2, 1, false).is_some());
    assert_eq!(put(refused(), 0, 1, 1, false), None);
    assert_eq!(
        put(Content::Later, old, 9, 9, false),
        None,
        "a later MAIO's"
    );
}

#[test]
fn unexamined_template_is_not_replaced() {
    let object = listed(1, "b", SETTLED.as_secs() * 2);
    let known = known(&[(&listed(1, "a", 0), Content::Template(quality(1, 1)))]);
    assert!(outgoing(NOW, &[object], &known, &[own(1, 5, NOW)], |_, _| false).is_empty());
}

#[test]
fn best_local_template_is_uploaded_if_none_exists() {
    let all = [
        own(1, 1, 9),
        own(1, 3, 4),
        own(1, 2, 6),
        own(2, 0, 9),
        own(3, 1, 1),
    ];
    let puts = outgoing(NOW, &[], &Known::default(), &all, |_, _| false);
    let found: Vec<_> = puts
        .iter()
        .map(|put| (put.own.quality, put.instead.clone()))
        .collect();
    assert_eq!(found, [(quality(2, 6), None), (quality(1, 1), None)]);
}

#[test]
fn a_service_has_no_more_than_its_places() {
    let many: Vec<_> = (0..100).map(|number| own(number, 1, 1)).collect();
    let there: Vec<_> = (100..130).map(|number| listed(number, "a", 0)).collect();
    let puts = outgoing(NOW, &there, &Known::default(), &many, |_, _| false);
    assert_eq!(puts.len(), 2);
}

#[test]
fn template_expires_only_past_the_age_limit() {
    let all = [
        listed(1, "a", EXPIRES.as_secs()),
        listed(2, "b", EXPIRES.as_secs() + 1),
    ];
    let gone: Vec<_> = expired(NOW, &all).map(|it| it.place.clone()).collect();
    assert_eq!(gone, [place(2)]);
}

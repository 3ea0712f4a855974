//! The plans that are part of the program.

/// Name and text of each, in the order of the papers.
pub const PLANS: &[(&str, &str)] = &[
    ("tfo-fig1", include_str!("../../../../plans/tfo-fig1.toml")),
    ("tfo-table1", include_str!("../../../../plans/tfo-table1.toml")),
    ("tfo-fig6", include_str!("../../../../plans/tfo-fig6.toml")),
    ("tfo-tps", include_str!("../../../../plans/tfo-tps.toml")),
    ("tfo-fallback", include_str!("../../../../plans/tfo-fallback.toml")),
    ("ga-table1", include_str!("../../../../plans/ga-table1.toml")),
    ("ga-fig1", include_str!("../../../../plans/ga-fig1.toml")),
    ("ga-fig2", include_str!("../../../../plans/ga-fig2.toml")),
    ("ga-fig3", include_str!("../../../../plans/ga-fig3.toml")),
    ("ga-fig4", include_str!("../../../../plans/ga-fig4.toml")),
    ("ga-table2", include_str!("../../../../plans/ga-table2.toml")),
    ("ga-table3", include_str!("../../../../plans/ga-table3.toml")),
    ("ga-fig9", include_str!("../../../../plans/ga-fig9.toml")),
    ("ga-table4", include_str!("../../../../plans/ga-table4.toml")),
    ("ga-table5a", include_str!("../../../../plans/ga-table5a.toml")),
    ("ga-table5b", include_str!("../../../../plans/ga-table5b.toml")),
    ("ga-table5c", include_str!("../../../../plans/ga-table5c.toml")),
    ("ga-redundant-syn", include_str!("../../../../plans/ga-redundant-syn.toml")),
    ("ga-fig7", include_str!("../../../../plans/ga-fig7.toml")),
    ("ga-fig8", include_str!("../../../../plans/ga-fig8.toml")),
    ("ga-fig10", include_str!("../../../../plans/ga-fig10.toml")),
    ("ga-table6", include_str!("../../../../plans/ga-table6.toml")),
    ("ga-fig11", include_str!("../../../../plans/ga-fig11.toml")),
    ("ga-overhead", include_str!("../../../../plans/ga-overhead.toml")),
    ("bar", include_str!("../../../../plans/bar.toml")),
    ("bbr", include_str!("../../../../plans/bbr.toml")),
    ("fairness", include_str!("../../../../plans/fairness.toml")),
    ("coexistence", include_str!("../../../../plans/coexistence.toml")),
    ("path-members", include_str!("../../../../plans/path-members.toml")),
    ("negative-controls", include_str!("../../../../plans/negative-controls.toml")),
    ("today", include_str!("../../../../plans/today.toml")),
    ("kernel-reference", include_str!("../../../../plans/kernel-reference.toml")),
    ("kernel-again", include_str!("../../../../plans/kernel-again.toml")),
];

/// Returns the text of the plan with this name.
pub fn text(name: &str) -> Option<&'static str> {
    PLANS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Expectation, Plan};

    #[test]
    fn every_plan_is_valid_and_has_expectations() {
        for (name, text) in PLANS {
            let plan = Plan::parse(name, text).unwrap_or_else(|error| panic!("{error}"));
            assert!(plan.cells.iter().any(|cell| !cell.expectations.is_empty()), "{name} expects nothing");
            let claim = plan.claim.as_ref().unwrap_or_else(|| panic!("{name} has no claim"));
            for [cell, arm, metric] in &claim.figures {
                let is_figure = |it: &Expectation| it.arm == *arm && it.metric.to_string() == *metric;
                let mut cells = plan.cells.iter().filter(|it| it.name == *cell);
                assert!(
                    cells.any(|cell| cell.expectations.iter().any(is_figure)),
                    "{name}: the claim rests on {cell} {arm} {metric}, which is not expected"
                );
            }
            for expectation in plan.cells.iter().flat_map(|cell| &cell.expectations) {
                let [low, high] = expectation.range;
                let surprising = expectation.paper.is_some_and(|paper| paper < low || paper > high);
                assert!(
                    !surprising || !expectation.why.is_empty(),
                    "{name}: a range without the paper's figure has a reason"
                );
            }
        }
    }
}

"""Prometheus text, as the reference parser reads it."""

from prometheus_client.parser import text_string_to_metric_families
from report_parts import case, hostile, mixed, report

from proctor.report.outputs import render


def samples(of):
    """Every sample by name and labels, as the reference parser sees them."""
    families = list(text_string_to_metric_families(render("prometheus", of)))
    assert all(family.type == "gauge" and family.documentation for family in families)
    found = {}
    for sample in (sample for family in families for sample in family.samples):
        key = (sample.name, *sorted(sample.labels.items()))
        assert key not in found, "a sample twice"
        found[key] = sample.value
    return found


def of_case(name, **more):
    labels = {"suite": "suite.yaml", "agent": "agents:answer", "trial": "1", "case": name, **more}
    return sorted(labels.items())


def test_metrics_hold_the_figures():
    """R-Q5: counts, scores and costs are there; what is not known has no sample."""
    found = samples(mixed())
    assert found["proctor_exit_code",] == 1
    assert found["proctor_cases", ("status", "passed")] == 1
    assert found["proctor_cases", ("status", "hard_fail")] == 1
    assert found["proctor_cases_not_run",] == 2
    assert found["proctor_checks", ("status", "warn")] == 2
    assert found["proctor_cost_usd",] == 0.41
    assert found["proctor_unpriced_calls",] == 3
    assert found[("proctor_case_passed", *of_case("good"))] == 1
    assert found[("proctor_case_passed", *of_case("wrong"))] == 0
    assert found[("proctor_case_score", *of_case("weak"))] == 0.5
    assert ("proctor_case_score", *of_case("crash")) not in found
    assert ("proctor_case_passed", *of_case("crash")) not in found
    assert ("proctor_case_cost_usd", *of_case("wrong")) not in found
    warned = of_case("good", layer="path", status="warn")
    assert found[("proctor_case_checks", *warned)] == 1


def test_labels_are_escaped():
    """R-Q5: quotes, backslashes and line breaks in names reach the parser as they were."""
    name = 'C:\\suites\\"mine".yaml'
    found = samples(report(case(suite=name)))
    assert any(("suite", name) in key for key in found)


def test_hostile_text_adds_no_sample():
    """R-Q5: no text of an agent is a metric, and none is in a label."""
    found = samples(hostile())
    assert {key[0] for key in found if not key[0].startswith("proctor_")} == set()
    assert found["proctor_cases", ("status", "passed")] == 0
    assert not any("evil" in str(key) for key in found)

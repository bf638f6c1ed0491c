"""The reference page is right: its examples run and give what it prints."""

import doctest


def test_examples_of_the_reference_page(root):
    """R-C3: every example on the metrics page gives exactly what the page says."""
    page = (root / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    examples = doctest.DocTestParser().get_doctest(page.replace("```", ""), {}, "metrics", None, 0)
    assert len(examples.examples) >= 20
    output: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(examples, out=output.append)
    assert results.failed == 0, "".join(output)

"""Markdown, as a real parser reads it."""

from markdown_it import MarkdownIt
from report_parts import case, check, hostile, mixed, report

from proctor.report.outputs import render
from proctor.sanitize import markdown, markdown_code

PARSER = MarkdownIt("commonmark", {"html": True}).enable("table")


def tokens(text):
    """Every token with those inside lines."""
    for token in PARSER.parse(text):
        yield token
        yield from token.children or ()


def text_of(markdown_text):
    words = (t.content for t in tokens(markdown_text) if t.type in ("text", "code_inline"))
    return " ".join(words)


def test_report_reads_as_meant():
    """R-Q5: Markdown has a table of all cases and the reasons of those that did not pass."""
    html = PARSER.render(render("markdown", mixed()))
    assert html.count("<tr>") == 1 + 5
    assert "<strong>1 of 7 cases passed; 2 failed (1 on a blocking check); " in html
    assert "1 could not be judged; 1 stopped; 2 not run; 2 warnings</strong>" in html
    assert "cost ≥ $0.41, 3 calls unpriced" in html
    assert "<strong>expected_in_answer</strong>: the answer lacks 'Paris'" in html
    assert "<code>&quot;Rome&quot;</code>" in html
    assert "by judge gpt" in html


def test_hostile_text_is_no_markup():
    """R-Q5: no HTML, link, image, heading, list or table comes from an agent's words."""
    kinds = {token.type for token in tokens(render("markdown", hostile()))}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "fence", "code_block"}
    headings = [t for t in tokens(render("markdown", hostile())) if t.type == "heading_open"]
    assert len(headings) == 1 + 3
    assert "@somebody" not in render("markdown", hostile())
    assert "<script" not in PARSER.render(render("markdown", hostile()))


def test_code_survives_backticks():
    """R-Q5: a value with any run of backticks stays one piece of code."""
    for text in ("`", "``", "a ``` b", "`x`", " ", "\\`", "|"):
        found = [t for t in tokens(markdown_code(text)) if t.type == "code_inline"]
        assert [t.content.strip() for t in found] == [text.strip()]


def test_escaped_words_read_as_written():
    """R-Q5: escaping is for the parser; a reader sees the words."""
    words = "a_b *c* [d](e) <f> &amp; #1 | `g` 1. 2) + - ~h~ $i$ \\j"
    assert text_of(markdown(words)).replace("  ", " ") == words


def test_a_pipe_does_not_add_a_cell():
    """R-Q5: names with pipes leave the table as wide as it is."""
    html = PARSER.render(render("markdown", report(case(agent="a|b"), case(agent="c"))))
    assert html.count("<td>") == 2 * 8
    assert html.count("a|b") == 1
    assert check  # every case here passed: the table is all there is

"""Reading YAML: values with places, and every hostile file survived with a located message."""

import gc
import json
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.spec.located import Tree, YamlDocument, plain
from proctor.spec.yaml_reader import MAX_BYTES, MAX_DEPTH, read, read_text

NOTHING: dict[str, str] = {}


def values(text: str, **environ: str) -> object:
    document = read_text(text, "t.yaml", environ=environ)
    assert document.problems == []
    assert document.tree is not None
    return plain(document.tree)


def problems(text: str | bytes, folder: Path, **environ: str) -> list[str]:
    path = folder / "suite.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [relative(folder, str(p)) for p in read(path, environ=environ).problems]


def relative(folder: Path, text: str) -> str:
    return text.replace(f"{folder}/", "")


def at(document: YamlDocument, *steps: str | int) -> Tree:
    tree = document.tree
    for step in steps:
        assert tree is not None
        tree = tree.child(step)
    assert tree is not None
    return tree


def test_every_value_knows_its_place() -> None:
    """R-S1: file, line and column of keys and values, in block and flow style and after BOM."""
    document = read_text("\ufeffa: 1\nb:\n  - {c: x, dé: [y, 'z']}\n", "t.yaml", environ=NOTHING)
    assert str(at(document, "a").place) == "t.yaml:1:4"
    assert str(at(document, "b", 0).place) == "t.yaml:3:5"
    assert str(at(document, "b", 0).keys["dé"]) == "t.yaml:3:12"
    assert str(at(document, "b", 0, "dé", 1).place) == "t.yaml:3:20"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("12:30", "12:30"),
        ("2024-01-02", "2024-01-02"),
        ("true", True),
        ("~", None),
        ("", None),
        ("0o17", 15),
        ("0x1F", 31),
        ("-7", -7),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1_000", "1_000"),
        ("'7'", "7"),
        ("!!str 7", "7"),
        ("!!float 7", 7.0),
        ("9" * 1001, "9" * 1001),
    ],
)
def test_scalars_mean_what_editors_say(text: str, value: object) -> None:
    """R-S1: YAML 1.2: `no` and dates are text."""
    found = values(text)
    assert found == value
    assert type(found) is type(value)


def test_anchors_and_merge_keys() -> None:
    """R-S1: aliases repeat a value; with `<<` a mapping's own keys win, then the first base's."""
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 3}\nd: {'<<': 1}\n"
    assert values(text) == {
        "a": {"x": 1, "y": 1},
        "b": {"y": 2, "z": 2},
        "c": {"x": 3, "y": 1, "z": 2},
        "d": {"<<": 1},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "suite.yaml:3:1: the key 'a' is there twice"),
        (
            "a: !python/object:os.system x\n",
            "suite.yaml:1:4: unknown tag '!python/object:os.system'",
        ),
        ("a: !!python/name:os.system x\n", "suite.yaml:1:4: unknown tag '!!python/name:os.system'"),
        ("a: !inclde x.yaml\n", "suite.yaml:1:4: unknown tag '!inclde'"),
        ("a: !!int x\n", "suite.yaml:1:4: 'x' is not a value of type !!int"),
        ("a: *b\n", "suite.yaml:1:4: the alias *b names no anchor that ends before it"),
        ("a: &a [*a]\n", "suite.yaml:1:8: the alias *a names no anchor that ends before it"),
        ("[a]: 1\n", "suite.yaml:1:1: a key must be text"),
        ("a: {<<: 3}\n", "suite.yaml:1:5: `<<` takes a mapping, or a list of mappings"),
        ("a: 1\n---\nb: 2\n", "suite.yaml:2:1: a second document begins here"),
        ("a: \x00\n", "suite.yaml:1:4: the character U+0000 is not allowed in YAML"),
        ("a: 1\nb: \x1b[31m\n", "suite.yaml:2:4: the character U+001B is not allowed in YAML"),
        (b"a: 1\nb: caf\xe9\n", "suite.yaml:2:7: not UTF-8 text: invalid continuation byte"),
        (b"\xff\xfea", "suite.yaml:1:1: not UTF-16 text: truncated data"),
    ],
)
def test_one_located_message(text: str | bytes, expected: str, tmp_path: Path) -> None:
    """R-S1: whatever is wrong with a file is said at its place."""
    assert problems(text, tmp_path) == [expected]


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("a:\n\t- b\n", "t.yaml:2:1", "indent with spaces"),
        ("a: b: c\n", "t.yaml:1:5", "a colon inside text needs quotes"),
        ("a: @b\n", "t.yaml:1:4", "needs quotes"),
        ("a:\n  - b\n c: d\n", "t.yaml:3:2", "indented like its neighbours"),
        ("a: 1\nb: {c: [d\ne: f\n", "t.yaml:3:2", "close the bracket that opens in line 2"),
    ],
)
def test_syntax_errors_say_what_to_do(text: str, place: str, hint: str) -> None:
    """R-S1: the commonest slips come with their remedy."""
    (problem,) = read_text(text, "t.yaml", environ=NOTHING).problems
    assert str(problem.place) == place
    assert problem.message.startswith("not YAML: ")
    assert hint in (problem.hint or "")


def test_problems_are_told_together(tmp_path: Path) -> None:
    """R-S1: reading goes on after what can be passed over."""
    text = "a: ${NOPE}\nb: !x 1\nb: 2\nc: *d\n"
    assert [line.split(": ")[0] for line in problems(text, tmp_path)] == [
        "suite.yaml:1:4",
        "suite.yaml:2:4",
        "suite.yaml:3:1",
        "suite.yaml:4:4",
    ]


# -- hostile files -------------------------------------------------------------------------------


def test_a_billion_laughs(tmp_path: Path) -> None:
    """R-S1: a file that would expand to gigabytes is refused, quickly and at its place."""
    lines = ["a0: &a0 [" + ", ".join(["lol"] * 10) + "]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    (problem,) = problems("\n".join(lines), tmp_path)
    assert problem.startswith("suite.yaml:6:")
    assert "more than 500,000 values" in problem


def test_a_billion_laughs_by_inclusion(tmp_path: Path) -> None:
    """R-S1: inclusion does not get around the limit."""
    for i in range(1, 12):
        (tmp_path / f"{i}.yaml").write_text(f"[{', '.join([f'!include {i + 1}.yaml'] * 10)}]")
    (tmp_path / "12.yaml").write_text("[lol]")
    found = problems("a: !include 1.yaml", tmp_path)
    assert any("more than 500,000 values" in line for line in found)


def test_a_huge_file(tmp_path: Path) -> None:
    """R-S1: 50 MB are refused without being read."""
    path = tmp_path / "suite.yaml"
    with path.open("wb") as file:
        file.truncate(50 * 2**20)
    (problem,) = read(path, environ=NOTHING).problems
    assert problem.message == f"larger than {MAX_BYTES // 2**20} MiB"
    assert "!include" in (problem.hint or "")


@pytest.mark.parametrize("piece", ["[", "{a: ", "- ", "? "])
def test_deep_nesting(piece: str, tmp_path: Path) -> None:
    """R-S1: depth is bounded before any stack is."""
    (problem,) = problems(piece * 100_000, tmp_path)
    assert problem.startswith("suite.yaml:1:")
    assert problem.endswith(f": values are nested more than {MAX_DEPTH} deep")


def test_deep_nesting_by_aliases(tmp_path: Path) -> None:
    """R-S1: each alias inside the next is as deep as brackets would be."""
    lines = ["- &a0 []", *(f"- &a{i} [*a{i - 1}]" for i in range(1, 200))]
    (problem,) = problems("\n".join(lines), tmp_path)
    assert problem.endswith(f"nested more than {MAX_DEPTH} deep")


@pytest.mark.parametrize("name", ["missing.yaml", "folder"])
def test_what_cannot_be_opened(name: str, tmp_path: Path) -> None:
    """R-S1: a missing file and a folder are problems like any other."""
    (tmp_path / "folder").mkdir()
    document = read(tmp_path / name, environ=NOTHING)
    assert document.tree is None
    assert document.problems[0].message.startswith("cannot be read: ")


PIECES = [*"abc01 \n\t-:,[]{}&*!|>'\"%@`#?~.$<=\\\0\r\ufeff\u2028\x85é😀"]
PIECES += ["a: ", "\n  - ", "${A}", "&a ", "*a", "<<: ", "!include ", "---\n", "\n\n"]
YAMLISH = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@given(YAMLISH)
def test_no_text_is_too_strange(text: str) -> None:
    """R-S1: any text is read, or refused with a place inside it."""
    document = read_text(text, "t.yaml", environ={"A": "held"})
    lines = text.replace("\r\n", "\n").count("\n") + sum(map(text.count, "\r\x85\u2028\u2029")) + 1
    assert document.tree is not None or document.problems
    for problem in document.problems:
        assert problem.line is not None
        assert problem.column is not None
        assert 1 <= problem.line <= lines + 1
        assert problem.column >= 1
        assert problem.message
    if document.tree is not None:
        json.dumps(plain(document.tree))


@given(st.binary(max_size=80))
def test_no_bytes_are_too_strange(data: bytes) -> None:
    """R-S1: bytes of any kind give a value or a located message."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.yaml"
        path.write_bytes(data)
        document = read(path, environ=NOTHING)
    assert document.tree is not None or document.problems
    assert all(p.line is not None and p.column is not None for p in document.problems)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        alphabet=string.printable.replace("\x0b", "").replace("\x0c", "") + "é😀", max_size=12
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(string.ascii_letters, min_size=1, max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON)
def test_json_is_yaml(value: object) -> None:
    """R-S1: every JSON document means the same here, references to variables aside."""
    text = json.dumps(value, ensure_ascii=False).replace("${", "$${")
    assert values(text) == value


def test_json_files_with_escaped_pairs(tmp_path: Path) -> None:
    """R-S1: JSON as other programs write it, escapes beyond the first plane included."""
    value = {"a": "😀 \\ud83d\\ude00", "é": "\\\\😀"}
    (tmp_path / "x.json").write_text(json.dumps(value))
    document = read(tmp_path / "x.json", environ=NOTHING)
    assert document.problems == []
    assert document.tree is not None
    assert plain(document.tree) == value


# -- environment variables -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "held"),
        ("x ${A}-${A} y", "x held-held y"),
        ("'${A}'", "held"),
        ("${N}", "3"),
        ("${NOPE:-d e}", "d e"),
        ("${NOPE:-}", ""),
        ("${EMPTY:-d}", "d"),
        ("${EMPTY}", ""),
        ("$${A}", "${A}"),
        ("$A $ {A}", "$A $ {A}"),
        ("${A}: 1", {"${A}": 1}),
    ],
)
def test_variables_only_where_written(text: str, value: object) -> None:
    """R-S1: `${NAME}` in values alone; what a variable holds is text."""
    assert values(text, A="held", N="3", EMPTY="") == value


@pytest.mark.parametrize("text", ["${1A}", "${A", "${A.b}", "${}", "${A:?x}"])
def test_half_written_references_are_told(text: str, tmp_path: Path) -> None:
    """R-S1: a slip in a reference does not pass as text."""
    (problem,) = problems(f"a: '{text}'", tmp_path, A="held")
    assert problem.startswith("suite.yaml:1:4: '${")
    assert "held" not in problem


def test_what_a_variable_held_is_marked() -> None:
    """R-S1: the value as written can be had back, so that the held one is never shown."""
    document = read_text("a: x ${A}\nb: ${NOPE:-d}", "t.yaml", environ={"A": "held"})
    assert document.tree is not None
    assert plain(document.tree, as_written=True) == {"a": "x ${A}", "b": "d"}
    assert at(document, "a").secrets == (("held", "${A}"),)


# -- !include ------------------------------------------------------------------------------------


def test_include(tmp_path: Path) -> None:
    """R-S1: data of YAML and JSON files, text of others; a list within a list is spliced in."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one.yaml").write_text("- 1\n- !include two.json\n")
    (tmp_path / "sub" / "two.json").write_text('{\n\t"two": 2\n}')
    (tmp_path / "text.md").write_text("literal ${A}\n")
    (tmp_path / "s.yaml").write_text(
        "a: [0, !include sub/one.yaml]\nb: !include sub/one.yaml\nc: !include text.md\n"
    )
    document = read(tmp_path / "s.yaml", environ=NOTHING)
    assert document.problems == []
    assert document.tree is not None
    assert plain(document.tree) == {
        "a": [0, 1, {"two": 2}],
        "b": [1, {"two": 2}],
        "c": "literal ${A}\n",
    }
    assert str(at(document, "a", 2).keys["two"]) == f"{tmp_path}/sub/two.json:2:2"


def test_include_stays_in_the_folder(tmp_path: Path) -> None:
    """R-S1: no path, absolute path or link leads out of the suite's folder."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.yaml").write_text("secret")
    (inside / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (inside / "loop.yaml").symlink_to(inside / "loop.yaml")
    text = (
        "- !include ../secret.yaml\n"
        f"- !include {tmp_path}/secret.yaml\n"
        "- !include link.yaml\n"
        "- !include loop.yaml\n"
        "- !include nope.yaml\n"
        "- !include .\n"
    )
    found = problems(text, inside)
    assert [line.partition(": ")[0] for line in found] == [f"suite.yaml:{n}:3" for n in range(1, 7)]
    assert ["may not leave" in line for line in found] == [True, True, True, False, False, False]
    assert "there is no file" in found[4]


def test_include_in_a_circle(tmp_path: Path) -> None:
    """R-S1: files that include each other are refused where the circle closes."""
    (tmp_path / "a.yaml").write_text("x: !include b.yaml")
    (tmp_path / "b.yaml").write_text("\ny: !include a.yaml")
    found = [
        relative(tmp_path, str(p)) for p in read(tmp_path / "a.yaml", environ=NOTHING).problems
    ]
    assert found == ["b.yaml:2:4: circular !include: a.yaml → b.yaml → a.yaml"]


def test_errors_of_an_included_file_point_there(tmp_path: Path) -> None:
    """R-S1: the place is in the file that holds the mistake."""
    (tmp_path / "more.yaml").write_text("- a\n- b: c: d\n")
    (found,) = problems("x: !include more.yaml\n", tmp_path)
    assert found.startswith("more.yaml:2:")


def test_a_large_suite_is_read_with_the_collector_paused(tmp_path: Path) -> None:
    """R-S1: a suite of 12 MB is read, and looking for garbage takes no part of it."""
    path = tmp_path / "suite.yaml"
    text = "x" * 40_000
    path.write_text("cases:\n" + "".join(f"- {{id: c{n}, input: {text}}}\n" for n in range(300)))
    looks: list[str] = []
    gc.callbacks.append(lambda phase, _: looks.append(phase))
    try:
        assert not read(path, environ=NOTHING).problems
        assert gc.isenabled()
    finally:
        gc.callbacks.pop()
    assert len(looks) <= 2

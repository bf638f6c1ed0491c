"""Templates that mean harm: each refused with file, line and column, and at once."""

import os
from pathlib import Path
from typing import Any

import pytest

from proctor.errors import ProctorError
from proctor.scenarios import Catalog, build
from proctor.scenarios._interpreter import MAX_STEPS
from proctor.scenarios.builder import default_cache_folder
from proctor.spec import SpecError


def problems(catalog: Catalog, name: str = "a.b", **params: Any) -> list[str]:
    """What a build is refused for, places without the folder of the catalog."""
    with pytest.raises(SpecError) as caught:
        build(name, 1, catalog=catalog, **params)
    root = f"{catalog.paths[0]}{os.sep}"
    assert not default_cache_folder().exists()
    return [
        str(problem).replace(root, "").replace(os.sep, "/") for problem in caught.value.problems
    ]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("().__class__.__mro__[1].__subclasses__()", "attribute access is not part"),
        ("''.join(['a'])", "attribute access is not part"),
        ("__builtins__", "names do not begin with an underscore"),
        ("__import__('os').system('id')", "names do not begin with an underscore"),
        ("open('/etc/passwd')", "there is no function 'open'"),
        ("[x for x in (lambda: 1)]", "`lambda` is not part"),
        ("9 ** 9 ** 9 ** 9", "256 bits"),
        ("1 << 10 ** 9", "operations on bits"),
        ("'a' * 10 ** 12", "longer than 20,000"),
        ("[0] * 10 ** 12", "longer than 10,000"),
        ("range(10 ** 18)", "more than 10,000 items"),
        (
            "[a for a in range(9999) for b in range(9999) for c in range(9999) if false]",
            f"{MAX_STEPS:,} steps",
        ),
        ("-" * 3_000 + "1", "nested more than 30 deep"),
        ("+".join(["1"] * 1_500), "nested more than 60 deep"),
    ],
)
def test_hostile_expressions(catalog: Catalog, write, expression: str, message: str) -> None:
    """R-S4: dunder access, huge powers, shifts, ranges and texts, endless loops, deep recursion."""
    write(f'description: x\nscenario:\n  fine: 1\n  bad: !ev "{expression}"\n')
    (found,) = problems(catalog)
    assert found.startswith("a/b/spec.yaml:4:8: ")
    assert message in found


def test_every_problem_is_told_at_once(catalog: Catalog, write) -> None:
    """R-S4: one bad value does not hide the others, and what follows from it is not told again."""
    write("""\
        scenario:
          a: !ev 1 / 0
          b: !ref scenario.a
          c: !ev "ref('scenario.a') + 1"
          d: !ref scenario.nowhere
          e: !ev unknown + 1
          f: .nan
        """)
    assert problems(catalog) == [
        "a/b/spec.yaml:2:6: division by zero, in `1 / 0`",
        "a/b/spec.yaml:5:6: there is no 'scenario.nowhere'",
        "a/b/spec.yaml:6:6: there is no value 'unknown', in `unknown`",
        "a/b/spec.yaml:7:6: the result is not a finite number",
    ]


@pytest.mark.parametrize(
    ("text", "circle"),
    [
        ("values: {x: !ref values.x}\nscenario: {a: !ref values.x}", "values.x → values.x"),
        (
            "values: {x: !ev y + 1, y: !ev x + 1}\nscenario: {a: !ev x}",
            "values.x → values.y → values.x",
        ),
        (
            "scenario: {a: !ref scenario.b, b: !ref scenario}",
            "scenario.a → scenario.b → scenario.a",
        ),
        (
            """params:
  p: {type: int, default: !ev q}
  q: {type: int, default: !ev p}
scenario: {a: !ev p}""",
            "params.p.default → params.q.default → params.p.default",
        ),
        (
            "names: {n: !ref scenario.a}\nscenario: {a: !ref names.n}",
            "names.n → scenario.a → names.n",
        ),
    ],
)
def test_references_in_a_circle(catalog: Catalog, write, text: str, circle: str) -> None:
    """R-S4: cyclic refs, through values, sections, parameters and names, are told as the circle."""
    write(text)
    told = [each for each in problems(catalog) if "circular reference" in each]
    assert len(told) == 1
    steps = told[0].partition("circular reference: ")[2].split(" → ")
    assert steps[0] == steps[-1]
    assert set(steps) == set(circle.split(" → "))


def test_a_long_chain_of_references(catalog: Catalog, write) -> None:
    """R-S4: depth is counted over all that a value refers to."""
    links = "".join(f"  v{n}: !ev v{n + 1} + 1\n" for n in range(500))
    write(f"scenario: {{a: !ev v0}}\nvalues:\n{links}  v500: 1\n")
    assert any("nested more than 60 deep" in each for each in problems(catalog))


@pytest.mark.parametrize(
    "link",
    [
        "!ref values.v{next}",
        "!ev v{next}",
        "{{a: {{a: !ref values.v{next}}}}}",
        "!ev \"[ref('values.v{next}') for i in range(1)][0]\"",
        "!ev '[[v{next}]][0][0] if true else 1'",
        "!ev max(1, len([v{next}]))",
    ],
)
def test_no_chain_reaches_the_end_of_the_stack(catalog: Catalog, write, link: str) -> None:
    """R-S4: the bound on depth holds for the longest way round, called from deep inside, too."""
    links = "".join(f"  v{n}: {link.format(next=n + 1)}\n" for n in range(200))
    write(f"scenario: {{a: !ref values.v0}}\nvalues:\n{links}  v200: 1\n")

    def deeper(frames: int) -> list[str]:
        return problems(catalog) if frames == 0 else deeper(frames - 1)

    assert any("nested more than 60 deep" in each for each in deeper(250))


def test_values_that_grow_by_references(catalog: Catalog, write) -> None:
    """R-S4: a billion values made of ten lines are refused, by !ev, by !ref and by depth."""
    tens = "".join(f"  v{n}: !ev '[v{n + 1}] * 10'\n" for n in range(12))
    write(f"scenario: {{a: !ref values.v0}}\nvalues:\n{tens}  v12: [1]\n")
    assert any("steps to build" in each for each in problems(catalog))
    tens = "".join(
        f"  v{n}: [{', '.join([f'!ref scenario.v{n - 1}'] * 10)}]\n" for n in range(1, 12)
    )
    write(f"scenario:\n  v0: 1\n{tens}")
    assert any("steps to build" in each for each in problems(catalog))
    nest = "".join(f"  v{n}: !ev \"[ref('scenario.v{n - 1}')]\"\n" for n in range(1, 90))
    write(f"scenario:\n  v0: 1\n{nest}")
    assert any("nested more than 32 deep" in each for each in problems(catalog))


def test_yaml_bombs(catalog: Catalog, write) -> None:
    """R-S4: aliases that unfold to a billion values, and values nested without end."""
    lines = "".join(f"  v{n}: &v{n} [{', '.join([f'*v{n - 1}'] * 10)}]\n" for n in range(1, 12))
    write(f"scenario:\n  v0: &v0 1\n{lines}")
    assert "values, counting every use of an alias" in problems(catalog)[0]
    write("scenario: " + "[" * 5_000)
    assert "nested more than" in problems(catalog)[0] or "not YAML" in problems(catalog)[0]
    write("scenario: &a {b: *a}")
    assert "names no anchor" in problems(catalog)[0]


def test_many_values_are_too_many(catalog: Catalog, write) -> None:
    """R-S4: a template may be read and still be too large to build."""
    row = ", ".join(["1"] * 1_000)
    rows = "".join(f"  r{n}: *row\n" for n in range(400))
    write(f"values: {{row: &row [{row}]}}\nscenario:\n{rows}")
    assert "steps to build" in problems(catalog)[0]


def test_a_large_text_included_often(catalog: Catalog, write) -> None:
    """R-S4: a text is read once, and counted as often as it stands there."""
    write("x" * 2_000_000, "a/b/big.txt")
    rows = "".join(f"  t{n}: !include big.txt\n" for n in range(2_000))
    write(f"scenario:\n{rows}")
    assert "16,777,216 characters" in problems(catalog)[0]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("../../../secret.yaml", "may not leave the folder"),
        ("../../../catalog-other/x.yaml", "may not leave the folder"),
        ("{outside}", "not an absolute one"),
        ("/etc/passwd", "not an absolute one"),
        ("C:\\\\Windows\\\\win.ini", "not an absolute one"),
        ("//host/share", "not an absolute one"),
        ("leads-out.yaml", "may not leave the folder"),
        ("folder-out/secret.yaml", "may not leave the folder"),
        ("nowhere.yaml", "there is no file"),
        ("..", "there is no file"),
        ("pipe", "there is no file"),
        ("loop.yaml", "there is no file|cannot be read"),
        ("bad\\0name", "there is no file"),
    ],
)
def test_includes_stay_in_the_catalog(
    catalog: Catalog, write, tmp_path: Path, target: str, message: str
) -> None:
    """R-S4: no include leads outside: not upwards, not by an absolute path, not through links."""
    outside = tmp_path / "secret.yaml"
    outside.write_text("key: hunter2\n", encoding="utf-8")
    (tmp_path / "catalog-other").mkdir()
    (tmp_path / "catalog-other" / "x.yaml").write_text("1\n", encoding="utf-8")
    written = target.replace("{outside}", outside.as_posix())
    file = write(f'scenario:\n  x: !include "{written}"\n')
    (file.parent / "leads-out.yaml").symlink_to(outside)
    (file.parent / "folder-out").symlink_to(tmp_path)
    (file.parent / "loop.yaml").symlink_to("loop.yaml")
    if hasattr(os, "mkfifo"):
        os.mkfifo(file.parent / "pipe")
    (found,) = problems(catalog)
    assert found.startswith("a/b/spec.yaml:2:6: ")
    assert any(each in found for each in message.split("|")), found
    assert "hunter2" not in found


def test_absolute_includes_are_refused_even_inside(catalog: Catalog, write) -> None:
    """R-S4: a template with an absolute path would mean something on one machine only."""
    inside = write("1\n", "a/b/inside.yaml")
    write(f"scenario:\n  x: !include {inside.as_posix()}\n")
    assert "not an absolute one" in problems(catalog)[0]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ("{a: !ref values.b, b: !ref values.a}", "values.a → values.b → values.a"),
        ("{a: {deep: [!ref values.a]}}", "values.a.deep.0 → values.a.deep.0"),
        ("{a: !ref values.b.0, b: [!ref values.c], c: !ref values.a}", "values.a → values.b.0 → "),
    ],
)
def test_a_circle_that_nothing_uses_is_told(
    catalog: Catalog, write, values: str, told: str
) -> None:
    """R-S4: cyclic references are refused with their place, also where no value asks for them."""
    write(f"values: {values}\ninput: hello")
    (problem,) = problems(catalog)
    assert f"circular reference: {told}" in problem
    write("values: {a: !ref values.c, b: !ref values.c, c: 1}\ninput: !ev str(a + b)")
    assert build("a.b", 1, catalog=catalog).case().input == "2"


def test_includes_in_a_circle_and_without_end(catalog: Catalog, write) -> None:
    """R-S4: a file that includes itself, however far round, is told as the circle."""
    write("scenario: {x: !include ../one.yaml}")
    write("y: !include two.yaml", "a/one.yaml")
    write("z: !include one.yaml", "a/two.yaml")
    assert problems(catalog) == [
        "a/two.yaml:1:4: circular !include: one.yaml → two.yaml → one.yaml"
    ]
    write("scenario: {x: !include spec.yaml}")
    assert "circular !include: spec.yaml → spec.yaml" in problems(catalog)[0]
    for number in range(40):
        write(f"x: !include f{number + 1}.yaml", f"a/b/f{number}.yaml")
    write("scenario: !include f0.yaml")
    assert any("include each other more than 16 deep" in each for each in problems(catalog))


def test_tags_that_construct_things(catalog: Catalog, write) -> None:
    """R-S4: no tag makes an object, and tags of ours stand where they belong."""
    write("""\
        scenario:
          a: !!python/object/apply:os.system ["id"]
          b: !ev [1, 2]
          c: !env HOME
        """)
    found = problems(catalog)
    assert "a/b/spec.yaml:2:6: unknown tag '!!python/object/apply:os.system'" in found
    assert "a/b/spec.yaml:3:6: !ev takes a text, not a list or a mapping" in found
    assert "a/b/spec.yaml:4:6: unknown tag '!env'" in found
    write("scenario:\n  !ev x: 1\n")
    assert problems(catalog) == ["a/b/spec.yaml:2:3: a key cannot be !ev"]


@pytest.mark.parametrize(
    "name", ["..", "a..b", "../catalog/a/b", "/a/b", "a.b.", "a b", "", "a/../a/b"]
)
def test_names_do_not_lead_out(catalog: Catalog, write, name: str) -> None:
    """R-S4: a dotted name is a way down in the catalog, nothing else."""
    write("scenario: {a: 1}")
    with pytest.raises(ProctorError, match=r"there is no|no such template"):
        build(name, 1, catalog=catalog)


def test_a_template_behind_a_link_is_not_read(catalog: Catalog, write, tmp_path: Path) -> None:
    """R-S4: a link in the catalog that leads outside is no template."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "spec.yaml").write_text("scenario: {a: 1}\n", encoding="utf-8")
    (catalog.paths[0] / "linked").symlink_to(tmp_path / "elsewhere")
    assert catalog.names() == []
    with pytest.raises(ProctorError, match="outside its catalog"):
        build("linked", 1, catalog=catalog)

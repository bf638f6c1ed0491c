"""`proctor runs import` from outside: what comes in is a run like any other."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import yaml
from result_parts import trial, write_run

from proctor.cli.main import run
from proctor.errors import ProctorError
from proctor.results import query
from proctor.runs.trial import TrialError
from proctor.spec import load_suite


def grades(folder: Path, name: str, passes: int) -> Path:
    """A table of two agents on ten cases, four trials each."""
    path = folder / f"{name}.csv"
    rows = [
        f"q{case},{agent},{int(agent == 'good' or trial < passes)},{'easy' if case < 5 else 'hard'}"
        for case in range(10)
        for agent in ("good", "bad")
        for trial in range(4)
    ]
    path.write_text("question,system,correct,level\n" + "\n".join(rows) + "\n")
    return path


def test_an_import_is_queried_reported_compared_and_gated(tmp_path: Path, capsys) -> None:
    """R-D3: results, report, leaderboard, compare and gate work on what came in."""
    root = ["--results", str(tmp_path / "results")]
    columns = ["--map", "question=case", "--map", "level=difficulty"]
    for name, passes in (("before", 4), ("after", 1)):
        file = grades(tmp_path, name, passes)
        assert run(["runs", "import", str(file), *columns, *root]) == 0
        assert "80 trials" in capsys.readouterr().out
    assert (
        run(["results", "after/*", "--group-by", "agent,difficulty", "--format", "json", *root])
        == 0
    )
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [(g["key"]["agent"], g["passed"], g["judged"]) for g in groups] == [
        ("bad", 5, 20),
        ("bad", 5, 20),
        ("good", 20, 20),
        ("good", 20, 20),
    ]
    before, after = (str(next((tmp_path / "results" / n).iterdir())) for n in ("before", "after"))
    assert run(["report", after, *root]) in (0, 1)
    assert "good" in capsys.readouterr().out
    assert run(["leaderboard", after, *root]) == 0
    assert "good" in capsys.readouterr().out
    assert run(["compare", before, after, *root]) in (0, 1)
    assert "bad" in capsys.readouterr().out
    assert run(["gate", after, "--against", before, *root]) == 1
    assert "REGRESSION" in capsys.readouterr().out
    assert run(["gate", before, "--against", before, *root]) == 2  # no second observation
    capsys.readouterr()
    log = (tmp_path / "results" / "audit.jsonl").read_text()
    assert '"import"' in log


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["t.csv", "--map", "question"], "is not COLUMN=FIELD"),
        (["t.csv", "--map", "question=cas"], "did you mean 'case'"),
        (["t.csv", "--map", "qestion=case"], "did you mean 'question'"),
        (["absent.csv"], "file does not exist"),
        (["t.txt"], "--from csv|jsonl|json|parquet|inspect|promptfoo"),
        (["t.csv", "--from", "promptfoo"], "not JSON"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, capsys, monkeypatch, asked, message) -> None:
    """R-D3: exit code 2, the place, a hint, and no run."""
    monkeypatch.chdir(tmp_path)
    grades(tmp_path, "t", 1)
    (tmp_path / "t.txt").write_text("hello")
    assert run(["runs", "import", *asked, "--results", str(tmp_path / "r")]) == 2
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "r").rglob("_spec_.yaml"))


def test_an_import_cannot_be_run_again(tmp_path: Path, monkeypatch, capsys) -> None:
    """R-D3: what others ran is not ours to go on with or repeat, and its cost is not none."""
    monkeypatch.chdir(tmp_path)
    assert (
        run(["runs", "import", str(grades(tmp_path, "before", 4)), "--map", "question=case"]) == 0
    )
    assert run(["report", "latest"]) == 0
    assert "cost: n/a (no model calls recorded)" in capsys.readouterr().out
    for command in (["rerun", "latest"], ["run", "--resume", "latest"]):
        assert run(command) == 2
        assert "the run was imported" in capsys.readouterr().err


# -- suites ----------------------------------------------------------------------------------------

BOT = """
import json
import proctor

@proctor.tool
def search(q):
    return "found"

def answer(question):
    text = question if isinstance(question, str) else json.dumps(question)
    if "price" in text:
        return '{"price": 3}'
    search(q="x")
    return "Paris is the capital of France" if "France" in text else "Sorry, I do not know"
"""

PROMPTFOO = """
prompts: ['Capital of {{country}}?', file://prompt.txt]
providers:
  - openai:chat:gpt-4o-mini
  - {id: 'anthropic:messages:claude-haiku-4-5', label: haiku, config: {temperature: 0}}
  - file://provider.py
defaultTest:
  assert: [{type: latency, threshold: 60000}]
tests:
  - description: france
    vars: {country: France}
    assert:
      - {type: contains, value: '{{country}}'}
      - {type: icontains, value: PARIS}
      - {type: equals, value: Paris is the capital of France}
      - {type: not-equals, value: London}
      - {type: regex, value: 'Par.s'}
      - {type: not-regex, value: 'Lond.n'}
      - {type: starts-with, value: Paris}
      - {type: contains-all, value: [Paris, capital]}
      - {type: contains-any, value: [Paris, Lyon]}
      - {type: not-contains-any, value: [Berlin, Rome]}
      - {type: 'trajectory:tool-used', value: search}
      - {type: 'not-trajectory:tool-used', value: delete_*}
      - {type: 'trajectory:tool-sequence', value: {mode: in_order, steps: [search]}}
      - {type: 'trajectory:tool-args-match', value: {name: search, args: {q: x}}}
      - {type: 'trajectory:step-count', value: {type: tool, max: 3}}
      - {type: trace-span-count, value: {pattern: '*search*', min: 1}}
      - {type: trace-error-spans, value: 0}
      - {type: trace-span-duration, value: {max: 60000}}
      - {type: ruby, value: output.length > 3}
      - {type: python, value: len(output) > 3}
      - {type: similar, value: x, threshold: 0.8}
  - description: case-sensitive
    vars: {country: France}
    assert: [{type: contains, value: PARIS}]
  - vars: {country: [Peru, Chad]}
    threshold: 0.6
    assert:
      - {type: contains, value: know, weight: 3}
      - {type: contains, value: zzz}
      - {type: assert-set, assert: [{type: contains, value: Sorry}]}
  - description: as-json
    vars: {country: price}
    assert:
      - {type: is-json, value: {type: object, required: [price]}}
      - {type: contains-json}
  - file://tests.csv
scenarios:
  - config: [{vars: {country: France}}]
    tests: [{description: scenario, assert: [{type: contains, value: Paris}]}]
"""

ROWS = """country,__expected,__expected2,__description,__threshold
France,contains: Paris,"icontains-any: PARIS,lyon",row one,
Peru,not-contains: know,icontains: sorry,row two,0.5
"""

PYDANTIC = """
name: capitals
cases:
  - name: france
    inputs: What is the capital of France?
    expected_output: Paris is the capital of France
    metadata: {difficulty: easy}
    evaluators:
      - EqualsExpected
      - Contains: Paris
      - Contains: {value: paris, case_sensitive: false}
      - IsInstance: str
  - name: case sensitive
    inputs: What is the capital of France?
    evaluators: [{Contains: {value: paris}}]
  - name: price
    inputs: {a: price}
    expected_output: {price: 3}
    evaluators:
      - EqualsExpected
      - {name: HasMatchingSpan, arguments: {query: {none: {has_status: error}}}}
evaluators:
  - MaxDuration: 60.0
  - MyOwn: {x: 1}
"""

SAMPLES = [
    {"id": 7, "input": "Capital of France?", "target": ["Lutetia", "paris"], "sandbox": "docker"},
    {"id": "pick", "input": "Pick", "choices": ["Rome", "Paris"], "target": "B"},
]


def converted(capsys, *arguments: str) -> tuple[dict[str, str], str]:
    """The status of each case of the suite that a file becomes, and what was listed."""
    assert run(["import-suite", *arguments, "-o", "suite.yaml", "--agent", "bot:answer"]) == 0
    listed = capsys.readouterr().err
    assert run(["validate", "suite.yaml"]) == 0
    capsys.readouterr()
    run(["test", "suite.yaml", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    return {case["case"]: case["status"] for case in found["cases"]}, listed


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    """A folder with an agent, where the commands run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bot.py").write_text(BOT)
    return tmp_path


def test_a_promptfoo_config_becomes_a_suite(project: Path, capsys) -> None:
    """R-D3: its tests give the verdicts they have there; the rest is listed with counts."""
    (project / "promptfooconfig.yaml").write_text(PROMPTFOO)
    (project / "prompt.txt").write_text("Name the capital of {{ country }}.")
    (project / "tests.csv").write_text(ROWS)
    statuses, listed = converted(capsys, "promptfooconfig.yaml")
    by_test = {
        case.rpartition("-prompt-txt")[0]: s for case, s in statuses.items() if "txt" in case
    }
    assert by_test == {
        "france": "passed",
        "case-sensitive": "hard_fail",
        "peru": "passed",
        "chad": "passed",
        "as-json": "passed",
        "row-one": "passed",
        "row-two": "passed",
        "scenario": "passed",
    }
    assert len(statuses) == 16
    for kind in ("ruby (2)", "similar (2)", "provider file://provider.py (1)"):
        assert f"no equivalent: {kind}" in listed
    assert "python" not in listed.replace("provider.py", "")
    assert run(["import-suite", "promptfooconfig.yaml"]) == 0
    suite = yaml.safe_load(capsys.readouterr().out)
    assert suite["agents"] == {
        "openai:chat:gpt-4o-mini": {"kind": "chat", "model": "openai:gpt-4o-mini"},
        "haiku": {"kind": "chat", "model": "anthropic:claude-haiku-4-5", "temperature": 0},
    }
    peru = next(case for case in suite["cases"] if case["id"].startswith("peru"))
    assert peru["threshold"] == 0.6
    assert peru["assertions"][1] | {"value": 0} == {
        "type": "output_contains",
        "value": 0,
        "case_sensitive": True,
        "required": False,
        "weight": 3.0,
    }


def test_judged_assertions_keep_their_judge(project: Path, capsys) -> None:
    """R-D3: rubrics become judge checks with the grader of the config."""
    (project / "c.yaml").write_text("""
prompts: ['{{q}}']
providers: [echo]
defaultTest: {options: {provider: 'openai:gpt-4o'}}
tests:
  - vars: {q: Hi}
    assert:
      - {type: llm-rubric, value: Is polite, threshold: 0.7}
      - {type: factuality, value: The sky is blue}
""")
    assert run(["import-suite", "c.yaml", "-o", "suite.yaml"]) == 0
    suite = yaml.safe_load((project / "suite.yaml").read_text())
    assert suite["judge"] == "openai:gpt-4o"
    rules = suite["cases"][0]["assertions"]
    assert (rules[0]["rule"], rules[0]["threshold"]) == ("Is polite", 0.7)
    assert rules[1]["expected"] == "The sky is blue"
    assert run(["validate", "suite.yaml"]) == 0
    assert run(["import-suite", "c.yaml", "-o", "suite.yaml"]) == 2
    assert "--force" in capsys.readouterr().err


def test_a_data_set_of_pydantic_evals_becomes_a_suite(project: Path, capsys) -> None:
    """R-D3: evaluators of a case and of the data set; those of the user are listed."""
    (project / "dataset.yaml").write_text(PYDANTIC)
    statuses, listed = converted(capsys, "dataset.yaml")
    assert statuses == {"france": "passed", "case-sensitive": "hard_fail", "price": "passed"}
    assert "no equivalent: MyOwn (3)" in listed
    assert "no equivalent: IsInstance (1)" in listed


@pytest.mark.parametrize("form", ["jsonl", "json", "csv"])
def test_the_samples_of_inspect_become_a_suite(project: Path, capsys, form: str) -> None:
    """R-D3: one of the targets must be in the answer; choices are shown with letters."""
    file = project / f"samples.{form}"
    if form == "csv":
        with file.open("w", newline="") as out:
            names = ["id", "input", "target", "choices", "sandbox"]
            rows = csv.DictWriter(out, names)
            rows.writeheader()
            for sample in SAMPLES:
                rows.writerow(
                    {k: json.dumps(v) if isinstance(v, list) else v for k, v in sample.items()}
                )
    else:
        lines = [json.dumps(sample) for sample in SAMPLES]
        file.write_text("\n".join(lines) if form == "jsonl" else f"[{','.join(lines)}]")
    statuses, listed = converted(capsys, file.name)
    assert statuses == {"7": "passed", "pick": "hard_fail"}
    assert "no equivalent: field sandbox" in listed
    assert "B) Paris" in (project / "suite.yaml").read_text()


def test_goldens_of_deepeval_are_data(project: Path, capsys) -> None:
    """R-S6: they name no checks; the hint is a suite that reads them."""
    (project / "goldens.json").write_text('[{"input": "Who?", "expected_output": "Ann"}]')
    assert run(["import-suite", "goldens.json", "--agent", "bot:answer"]) == 2
    hint = capsys.readouterr().err.partition("`")[2].partition("`")[0]
    (project / "suite.yaml").write_text(f"agent: bot:answer\n{hint}\n")
    (case,) = load_suite(project / "suite.yaml").cases
    assert (case.input, case.correctness.exact_match) == ("Who?", "Ann")


def test_a_data_set_needs_an_agent(project: Path, capsys) -> None:
    """R-D3: what cannot be run or read is an error with a hint."""
    (project / "dataset.yaml").write_text(PYDANTIC)
    assert run(["import-suite", "dataset.yaml"]) == 2
    assert "--agent" in capsys.readouterr().err
    (project / "other.yaml").write_text("a: 1")
    assert run(["import-suite", "other.yaml"]) == 2
    assert "--from promptfoo|pydantic-evals|inspect" in capsys.readouterr().err


# -- words of other tools --------------------------------------------------------------------------

FAMILIAR_SUITE = """
agent: bot:answer
judge_config: {model: 'openai:gpt-4o'}
cases:
  - input: hi
    correctness: {llm_judge: {rule: Kind., scale: 5, few_shot_examples: []}}
"""

FAMILIAR_EXPERIMENT = "experiment.mine: {scenarios: [mutualism.*], agents: [random]}"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["test", "--config", "suite.yaml"], "the file is an argument: proctor test suite.yaml"),
        (["run", "--scenarios", "x"], "scenarios are arguments"),
        (["batch", "--scenarios", "x"], "is now `proctor run`"),
        (["results", "--scenario", "x"], "it is `--case` here"),
        (["validate", "suite.yaml"], "it is `judge` here"),
        (["validate", "suite.yaml"], "scores are 1 to 5; `anchors`"),
        (["validate", "suite.yaml"], "it is `examples` here"),
        (["validate", "exp.yaml"], "`experiments: {mine: {cases: …, seeds: …}}`"),
        (["run", "exp.yaml"], "`experiments: {mine: {cases: …, seeds: …}}`"),
        (["batch", "exp.yaml"], "proctor run experiment.yaml"),
    ],
)
def test_words_of_other_tools_get_the_right_hint(
    project: Path, capsys, arguments: list[str], hint: str
) -> None:
    """R-S6: a familiar word that Proctor writes otherwise is answered with what to write."""
    (project / "suite.yaml").write_text(FAMILIAR_SUITE)
    (project / "exp.yaml").write_text(FAMILIAR_EXPERIMENT)
    assert run(arguments) == 2
    assert hint in capsys.readouterr().err


def test_a_query_by_scenario_names_the_filter(tmp_path: Path) -> None:
    """R-S6: `results.query(scenario=…)` is answered with `case`."""
    with pytest.raises(ProctorError) as refused:
        query(results=tmp_path, scenario="x")  # type: ignore[call-arg]
    assert refused.value.hint == "it is `case` here"


def test_categories_and_times_survive_an_export(tmp_path: Path, capsys) -> None:
    """R-D3, R-Q3: why a trial failed, and its times beside the agent's, are the same after export
    and import; another program's `category` is a property of its cases."""
    root = tmp_path / "results"
    failed = {"error": TrialError("ValueError", "bad input"), "category": "agent_error"}
    write_run(root, [trial(index=0, check_ms=7.0), trial(index=1, status="failed", **failed)])
    for form in ("csv", "json", "jsonl", "parquet"):
        file, back = tmp_path / f"t.{form}", tmp_path / form
        assert run(["runs", "export", "latest", "-o", str(file), "--results", str(root)]) == 0
        assert run(["runs", "import", str(file), "--results", str(back)]) == 0
        sql = 'SELECT category, error_type, check_ms FROM trials ORDER BY "index"'
        assert run(["sql", sql, "--format", "json", "--results", str(back)]) == 0
        shown = capsys.readouterr().out
        first, second = json.loads(shown[shown.index("{\n") :])["rows"]
        assert (first["category"], first["check_ms"]) == (None, 7.0)
        assert (second["category"], second["error_type"]) == ("agent_error", "ValueError")
    other = tmp_path / "other.csv"
    other.write_text("case,passed,category\na,1,math\nb,0,law\n")
    back = tmp_path / "other"
    assert run(["runs", "import", str(other), "--results", str(back)]) == 0
    capsys.readouterr()
    by = ["--group-by", "properties.category", "--format", "csv"]
    assert run(["results", *by, "--results", str(back)]) == 0
    assert capsys.readouterr().out.count("law") == 1


PYTHON = """
prompts: ["What is the capital of {{country}}?"]
tests:
  - description: france
    vars: {country: France}
    assert:
      - {type: python, value: "'Paris' in output and context['vars']['country'] == 'France'"}
      - {type: python, threshold: 0.5, value: "min(1, len(output) / 10)"}
      - type: python
        value: |
          words = output.split()
          return {'pass': len(words) > 2, 'score': 0.9, 'reason': f'{len(words)} words'}
      - {type: python, value: "file://check.py:brief", config: {most: 5}}
      - {type: not-python, value: "'sorry' in output"}
      - {type: python, value: "file://check.py"}
      - {type: python, value: return return}
"""


def test_python_of_promptfoo_runs_as_a_check(project: Path, capsys) -> None:
    """R-S6: expressions, bodies and functions of files judge as they do there; code that is none
    is listed."""
    (project / "promptfooconfig.yaml").write_text(PYTHON)
    (project / "check.py").write_text(
        "def brief(output, context): return len(output.split()) <= context['config']['most']\n"
        "def get_assert(output, context): return {'pass': True, 'score': 1}\n"
    )
    (project / "bot.py").write_text("def answer(_): return 'Paris is the capital of France.'\n")
    command = ["import-suite", "promptfooconfig.yaml", "-o", "suite.yaml", "--agent", "bot:answer"]
    assert run(command) == 0
    assert "no equivalent: python (1)" in capsys.readouterr().err
    assert run(["test", "suite.yaml", "--format", "json"]) == 1
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    found = [(check["status"], check["score"]) for check in case["checks"]]
    passed, scored = ("pass", 1.0), ("pass", 0.9)
    assert found == [passed, passed, scored, ("fail", 0.0), passed, passed]


JAVASCRIPT = """
prompts: ['{{country}}']
providers: [echo]
tests:
  - description: france
    vars: {country: France, most: 5}
    assert:
      - {type: javascript, value: "output.includes('Paris') && context.vars.most === 5;"}
      - {type: javascript, threshold: 0.5, value: "Math.min(1, output.length / 10)"}
      - {type: javascript, value: "const n = output.split(' ').length; n > 5"}
      - {type: javascript, value: "JSON.parse(output).price > 3"}
      - type: javascript
        value: |
          const words = output.split(' ');
          return { pass: words.length > 2, score: 0.9, reason: `${words.length} words` };
      - {type: not-javascript, value: "output.includes('sorry')"}
      - {type: javascript, value: "file://check.cjs:brief"}
      - {type: javascript, value: "file://check.mjs"}
      - {type: javascript, value: "file://needs.js"}
      - {type: javascript, value: "file://typed.ts"}
      - {type: word-count, value: {min: 3, max: 6}}
      - {type: word-count, value: 6}
      - {type: not-word-count, value: 7}
      - {type: levenshtein, value: Paris is the capital of Spain., threshold: 5}
      - {type: levenshtein, value: Lima is the capital of Peru.}
      - {type: not-contains-all, value: [Paris, Lima]}
      - {type: contains-json, value: {type: object, required: [price]}}
      - {type: regex, value: '^(?<city>\\w+) is'}
"""


def test_javascript_and_counts_of_promptfoo_run_as_checks(project: Path, capsys) -> None:
    """R-S6: JavaScript judges as in promptfoo, also where it raises; what needs other files is
    listed. The verdicts are those of promptfoo 0.121.20 for the same answer."""
    (project / "promptfooconfig.yaml").write_text(JAVASCRIPT)
    (project / "check.cjs").write_text(
        "module.exports.brief = async (output, { vars }) => output.split(' ').length > vars.most;\n"
    )
    (project / "check.mjs").write_text("export default (output) => output.endsWith('.');\n")
    (project / "needs.js").write_text("const other = require('./other'); module.exports = other;\n")
    (project / "bot.py").write_text("def answer(_): return 'Paris is the capital of France.'\n")
    command = ["import-suite", "promptfooconfig.yaml", "-o", "suite.yaml", "--agent", "bot:answer"]
    assert run(command) == 0
    assert "no equivalent: javascript (2)" in capsys.readouterr().err
    run(["test", "suite.yaml", "--format", "json"])
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    found = [(check["check"], check["status"], check["score"]) for check in case["checks"]]
    passed, failed = ("pass", 1.0), ("fail", 0.0)
    script = [passed, passed, passed, failed, ("pass", 0.9), passed, passed, passed]
    if shutil.which("node") is None:
        script = [("unscored", None)] * len(script)
    python = [passed, passed, passed, passed, failed, passed, failed]
    assert found == [
        *(("javascript_assertion", *each) for each in script),
        *(("python_assertion", *each) for each in python),
        ("regex_match", *passed),
    ]


def test_variables_of_files_and_of_variables_are_filled_in(project: Path, capsys) -> None:
    """R-S6: no test is lost, and no prompt keeps a name in braces."""
    (project / "vars.yaml").write_text("{who: Ann, q: 'Hi {{who}}'}")
    (project / "promptfooconfig.yaml").write_text(
        "prompts: ['{{q}}', 'prompts/make.py:prompt']\n"
        "tests:\n"
        "  - {vars: file://vars.yaml, assert: [{type: word-count, value: 2, metric: brief}]}\n"
        "  - {vars: [vars.yaml], assert: [{type: javascript, value: 'true'}]}\n"
    )
    assert run(["import-suite", "promptfooconfig.yaml", "--agent", "bot:answer"]) == 0
    out, err = capsys.readouterr()
    cases = yaml.safe_load(out)["cases"]
    assert [case["input"] for case in cases] == ["Hi Ann", "Hi Ann"]
    assert [case["checks"][0]["id"] for case in cases] == ["brief", "javascript"]
    assert "no equivalent: prompt function (1)" in err


def test_what_changes_a_test_of_promptfoo_is_never_dropped_in_silence(
    project: Path, capsys
) -> None:
    """R-S6: an agent without its tools, or another provider, is listed with its count."""
    (project / "promptfooconfig.yaml").write_text(
        "prompts: ['{{q}}']\n"
        "description: all that can be lost\n"
        "derivedMetrics: [{name: f1, value: 1}]\n"
        "providers:\n"
        "  - id: openai:gpt-4o-mini\n"
        "    config: {apiBaseUrl: 'http://127.0.0.1:9/v1', apiKeyEnvar: KEY, tools: [{}]}\n"
        "    prompts: [one]\n"
        "tests:\n"
        "  - vars: {q: Who}\n"
        "    provider: openai:gpt-4o\n"
        "    options: {rubricPrompt: Judge!}\n"
        "    assert: [{type: contains, value: Ann}]\n"
    )
    assert run(["import-suite", "promptfooconfig.yaml"]) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["agents"]["openai:gpt-4o-mini"] == {
        "kind": "chat",
        "model": "openai:gpt-4o-mini",
        "base_url": "http://127.0.0.1:9/v1",
        "api_key_env": "KEY",
    }
    listed = [line.removeprefix("no equivalent: ") for line in err.splitlines()[1:]]
    assert sorted(listed) == [
        "option derivedMetrics (1)",
        "provider config tools (1)",
        "provider option prompts (1)",
        "test option rubricPrompt (1)",
        "test provider (1)",
    ]


def test_assertions_on_a_transformed_output_have_no_equivalent(project: Path, capsys) -> None:
    """R-S6: what promptfoo checks after a transformation, a suite does not check before it."""
    (project / "promptfooconfig.yaml").write_text(
        "prompts: ['{{q}}']\n"
        "tests:\n"
        "  - vars: {q: Who}\n"
        "    options: {transform: output.toUpperCase()}\n"
        "    assert:\n"
        "      - {type: contains, value: PARIS}\n"
        "      - {type: latency, threshold: 60000}\n"
    )
    assert run(["import-suite", "promptfooconfig.yaml", "--agent", "bot:answer"]) == 0
    out, err = capsys.readouterr()
    (case,) = yaml.safe_load(out)["cases"]
    assert [each["type"] for each in case["assertions"]] == ["latency_under"]
    assert "no equivalent: contains (1)" in err
    assert "no equivalent: options.transform (1)" in err


def test_a_config_that_is_no_yaml_is_refused_with_its_place(project: Path, capsys) -> None:
    """R-S6: one line with the file, the line and the column."""
    (project / "promptfooconfig.yaml").write_text("prompts: [a]\ntests:\n  - vars: {q: Who?}\n")
    assert run(["import-suite", "promptfooconfig.yaml"]) == 2
    message = "promptfooconfig.yaml:3:18: not readable: expected ',' or '}', but got '?'"
    assert message in capsys.readouterr().err

"""The data of tools: fresh for each trial, judged at the end; approvals; the retail example."""

import json
import shutil
import sqlite3
import sys
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from commands import proctor as command

import proctor
from proctor.agents.registry import agent_config
from proctor.agents.session import StateConfig, ToolState, writes
from proctor.llm import MockLLM
from proctor.trials.regression_case import case_from_trial

SCHEMA = """
create table orders (id text primary key, status text);
insert into orders values ('A1', 'open'), ('B2', 'open');
"""
TOOLS = '''
def cancel(state, order: str) -> str:
    """Cancel an order."""
    state["orders"][order]["status"] = "cancelled"
    return "done"

def cancel_row(state, order: str) -> str:
    """Cancel an order."""
    state.execute("update orders set status = 'cancelled' where id = ?", (order,))
    if order == "B2":
        raise ValueError("locked")
    return "done"

class Shop:
    def __init__(self):
        self.sold = []

def sell(state, item: str) -> str:
    """Sell an item."""
    state.sold.append(item)
    return "done"
'''
DOCUMENT = {"orders": {"A1": {"status": "open"}, "B2": {"status": "open"}}}


def chat(server: MockLLM, folder: Path, *tools: dict[str, Any]) -> dict[str, Any]:
    options = {"kind": "chat", "model": "openai:gpt-4o-mini", "base_url": server.base_url}
    return {"chat": agent_config({**options, "tools": list(tools)}, base_dir=folder)}


def suite_in(folder: Path, *cases: dict[str, Any]) -> proctor.Suite:
    (folder / "shop_tools.py").write_text(TOOLS)
    (folder / "suite.yaml").write_text(yaml.safe_dump({"cases": list(cases)}))
    return proctor.load_suite(folder / "suite.yaml", need_agent=False)


@pytest.mark.parametrize(
    ("state", "tool", "expect"),
    [
        (
            {"document": DOCUMENT, "tools": "shop_tools"},
            "cancel",
            {
                "gold": [{"tool": "cancel", "arguments": {"order": "A1"}}],
                "writes": {"orders.A1.status": "cancelled"},
                "jmespath": {"orders.B2.status": "open"},
            },
        ),
        (
            {"sql": SCHEMA, "tools": "shop_tools"},
            "cancel_row",
            {
                "gold": [{"tool": "cancel_row", "arguments": {"order": "A1"}}],
                "sql": [
                    {"query": "select id from orders where status = 'cancelled'", "rows": [["A1"]]}
                ],
                "writes": {"orders.A1.status": "cancelled"},
            },
        ),
        ({"python": "shop_tools:Shop"}, "sell", {"equals": {"sold": ["A1"]}}),
    ],
)
def test_tools_share_the_data_of_their_trial(
    tmp_path: Path, state: dict[str, Any], tool: str, expect: dict[str, Any]
) -> None:
    """R-N8: a document, a database or an object; each trial has its own; models never see it."""
    argument = "item" if tool == "sell" else "order"
    calls = [{"name": tool, "arguments": {argument: "A1"}}]
    script = [
        {"when": {"tool_result": "done"}, "text": "done", "times": "forever"},
        {"tool_calls": calls, "times": "forever"},
    ]
    cases = [{"id": i, "input": "go", "state": {**state, "expect": expect}} for i in "ab"]
    suite = suite_in(tmp_path, *cases)
    with MockLLM(script) as server:
        agents = chat(server, tmp_path, {"python": f"shop_tools:{tool}"})
        run = proctor.evaluate(suite, agents=agents, concurrency=2)
        (schema,) = server.requests[0].body["tools"]
    assert list(schema["function"]["parameters"]["properties"]) == [argument]
    for trial in run.trials:
        assert trial.passed, (trial.error, [c.reason for c in trial.checks])
        assert {check.id for check in trial.checks} == {f"state.{name}" for name in _names(expect)}


def _names(expect: dict[str, Any]) -> list[str]:
    names = [key for key in ("equals", "writes", "gold") if key in expect]
    return [*names, *expect.get("jmespath", ()), *(["sql1"] if "sql" in expect else [])]


def test_wrong_missing_and_extra_writes_fail() -> None:
    """R-N8: the reason names each; a failed database call leaves nothing behind."""
    case = {"input": "x", "state": {"document": DOCUMENT, "expect": {}}}
    reasons = {}
    for name, wanted in {
        "missing": {"orders.A1.status": "cancelled", "orders.B2.status": "cancelled"},
        "extra": {},
        "wrong": {"orders.A1.status": "shipped"},
    }.items():
        made: Any = deepcopy(case)
        made["state"]["expect"] = {"writes": wanted}

        def agent(text: str, state: Any) -> str:
            state["orders"]["A1"]["status"] = "cancelled"
            return "done"

        (trial,) = proctor.evaluate(
            proctor.Suite.model_validate({"cases": [made]}), agent=agent
        ).trials
        assert trial.status == "hard_fail"
        reasons[name] = trial.checks[0].reason
    assert reasons == {
        "missing": "missing: orders.B2.status",
        "extra": "extra: orders.A1.status",
        "wrong": "wrong: orders.A1.status",
    }
    state = StateConfig(sql=SCHEMA).create(None)
    before = state.snapshot()

    def fail() -> None:
        with state.opened() as database:
            database.execute("update orders set status = 'cancelled'")
            raise ValueError("locked")

    with pytest.raises(ValueError, match="locked"):
        fail()
    assert writes(before, state.snapshot()) == {}


def test_a_query_sees_empty_tables_views_and_generated_columns() -> None:
    """R-N8: the final database has the schema of the first, so that a missing write fails."""
    sql = """
    create table refunds (id text, cents integer, euros real generated always as (cents / 100.0));
    create view large as select * from refunds where cents > 1000;
    """
    expect = {
        "sql": [
            {"query": "select count(*) from refunds", "rows": [[1]]},
            {"query": "select id, euros from large", "rows": [["A1", 20.0]]},
        ],
        "gold": [{"tool": "refund", "arguments": {"order": "A1"}}],
    }
    state = {"sql": sql, "tools": "tests_of_state", "expect": expect}
    suite = proctor.Suite.model_validate({"cases": [{"input": "x", "state": state}]})

    def refund(state: Any, order: str) -> None:
        state.execute("insert into refunds (id, cents) values (?, 2000)", (order,))

    module = ModuleType("tests_of_state")
    vars(module)["refund"] = refund
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tests_of_state", module)
        for does, status in ((lambda state: refund(state, "A1"), "pass"), (lambda _: None, "fail")):

            def agent(text: str, state: Any, does: Any = does) -> str:
                does(state)
                return "done"

            (trial,) = proctor.evaluate(suite, agent=agent).trials
            assert {check.id: check.status for check in trial.checks} == dict.fromkeys(
                ("state.sql1", "state.sql2", "state.gold"), status
            )


def test_rows_without_a_key_have_no_order() -> None:
    """R-N8: two writes in another order than the gold sequence are the same writes."""
    config = StateConfig(sql="create table log (what text)")
    made = []
    for order in (["a", "b", "b"], ["b", "a", "b"], ["b", "a"]):
        state = config.create(None)
        with state.opened() as database:
            database.executemany("insert into log values (?)", [(each,) for each in order])
        made.append(state.snapshot())
    assert made[0] == made[1]
    assert writes(made[1], made[2]) == {"log.b #2": None}


def test_objects_in_an_object_are_compared_by_their_fields() -> None:
    """R-N8: their texts would hold addresses of memory, so that no two states were equal."""

    class Order:
        def __init__(self, shop: Any) -> None:
            self.status, self.shop = "open", shop

    class Shop:
        def __init__(self) -> None:
            self.orders = {"A1": Order(self)}

    one, other = ToolState(Shop()), ToolState(Shop())
    assert one.snapshot() == other.snapshot()
    other.value.orders["A1"].status = "cancelled"
    assert writes(one.snapshot(), other.snapshot()) == {"orders.A1.status": "cancelled"}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"document": {}, "expect": {"jmespath": {"a[": 1}}}, "is not a JMESPath expression"),
        ({"document": {}, "expect": {"sql": [{"query": "q", "rows": []}]}}, "needs a database"),
        ({"document": {}, "expect": {"gold": [{"tool": "t"}]}}, "add `tools: MODULE`"),
        ({"file": "none.json"}, "the state cannot be read"),
        ({"sql": "creat table x"}, "syntax error"),
    ],
)
def test_a_state_that_cannot_be_used_is_found_by_validate(
    tmp_path: Path, state: dict[str, Any], message: str
) -> None:
    """R-N8 R-S1: not in the middle of a run, trial by trial."""
    path = tmp_path / "suite.yaml"
    (tmp_path / "a.py").write_text("def b(text): return text")
    path.write_text(yaml.safe_dump({"agent": "a:b", "cases": [{"input": "x", "state": state}]}))
    checked = command("validate", str(path))
    assert checked.returncode == 2
    assert message in checked.stderr


ORDERS = {"A1": {"email": "ada@example.org", "status": "open"}}


@proctor.tool
def cancel_for(state: Any, email: str) -> str:
    for order in state["orders"].values():
        if order["email"] == email:
            order["status"] = "cancelled"
    return "done"


def careful(text: str, state: Any) -> str:
    if "@" not in text:
        return "What is your email?"
    return f"{cancel_for(state, text)}: order A1 is cancelled"


def chatty(text: str, state: Any) -> str:
    return careful(text, state) + (" SECRET" if "@" in text else "")


def test_a_conversation_is_diagnosed_and_made_a_case_with_all_its_messages(tmp_path: Path) -> None:
    """R-N8 R-G3 R-G11: what the user said in a later turn is no invention of the agent, the shared
    data is no argument of a tool, and the regression case has the turns."""
    cases = [
        {
            "turns": ["Please cancel my order.", "ada@example.org"],
            "state": {"document": {"orders": ORDERS}},
            "correctness": {"not_in_answer": "SECRET"},
        }
    ]
    run = proctor.run(
        proctor.Suite.model_validate({"cases": cases}),
        agents={"careful": careful, "chatty": chatty},
        trials=1,
        results=tmp_path,
    )
    by_agent = {trial.agent: trial for trial in run.trials()}
    assert [by_agent[name].status for name in ("careful", "chatty")] == ["passed", "hard_fail"]
    trace = run.trace(by_agent["careful"])
    assert trace is not None
    assert [call.arguments for call in trace.tool_calls] == [{"email": "ada@example.org"}]
    assert proctor.diagnose(trace).findings == ()
    made = case_from_trial(run, by_agent["chatty"])
    assert made.case["turns"] == cases[0]["turns"]
    assert [each["value"] for each in made.case["assertions"]] == ["SECRET"]


def test_a_value_that_an_expression_needs_and_that_is_missing_is_a_failure() -> None:
    """R-N8 R-C2: what the agent did not write is its failure, not one of the check."""
    state = {"document": {}, "expect": {"jmespath": {"length(orders)": 1}}}
    suite = proctor.Suite.model_validate({"cases": [{"input": "x", "state": state}]})
    (trial,) = proctor.evaluate(suite, agent=lambda _text: "done").trials
    assert trial.status == "hard_fail"


def test_a_database_file_is_not_changed(tmp_path: Path) -> None:
    """R-N8: trials work on a copy in memory."""
    path = tmp_path / "shop.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript(SCHEMA)
    database.close()
    before = path.read_bytes()
    state = StateConfig(file="shop.sqlite").create(tmp_path)
    with state.opened() as connection:
        connection.execute("delete from orders")
    assert state.snapshot() == {"orders": {}}
    assert path.read_bytes() == before
    with pytest.raises(proctor.ProctorError, match="no such file"):
        StateConfig(file="other.db").create(tmp_path)


def test_tool_calls_need_approval(tmp_path: Path) -> None:
    """R-N8: the approver answers by rules; a denied call does not happen; checks see both."""
    script = [
        {"when": {"tool_result": "not approved"}, "text": "I may not.", "times": "forever"},
        {"when": {"tool_result": "done"}, "text": "Done.", "times": "forever"},
        {"when": "A1", "tool_calls": [{"name": "cancel", "arguments": {"order": "A1"}}]},
        {"when": "B2", "tool_calls": [{"name": "cancel", "arguments": {"order": "B2"}}]},
    ]
    rules = [
        {"tool": "can*", "arguments": {"order": "A1"}, "approve": True},
        {"approve": False, "reason": "ask the manager"},
    ]
    state = {"document": DOCUMENT}
    cases = [
        {
            "id": "yes",
            "input": "cancel A1",
            "state": {**state, "expect": {"writes": {"orders.A1.status": "cancelled"}}},
            "approvals": {"rules": rules, "expect": {"requested": "cancel", "approved": "cancel"}},
        },
        {
            "id": "no",
            "input": "cancel B2",
            "state": {**state, "expect": {"writes": {}}},
            "approvals": {"rules": rules, "expect": {"denied": ["cancel"], "approved": []}},
        },
    ]
    with MockLLM(script) as server:
        tool = {"python": "shop_tools:cancel", "approval": True}
        suite = suite_in(tmp_path, *cases)
        run = proctor.evaluate(suite, agents=chat(server, tmp_path, tool))
        seen = [m.content for r in server.requests for m in r.messages if m.role == "tool"]
    for trial in run.trials:
        assert trial.passed, (trial.case, [c.reason for c in trial.checks])
    assert "error: not approved: ask the manager" in seen


@pytest.mark.slow
def test_each_gold_sequence_of_the_retail_desk_passes_and_no_other(
    root: Path, tmp_path: Path
) -> None:
    """R-N8: gold scores 1.0; dropping or changing any write scores 0."""
    folder = shutil.copytree(root / "examples" / "retail_desk", tmp_path / "desk")
    done = command("test", "suite.yaml", "--agent", "gold", "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads(done.stdout)["cases"]
    assert len(cases) >= 12
    assert {case["score"] for case in cases} == {1.0}
    done = command("test", "suite.yaml", "--agent", "careless", "--format", "json", cwd=folder)
    assert done.returncode == 1
    written = {c["id"]: c for c in yaml.safe_load((folder / "suite.yaml").read_text())["cases"]}
    config = StateConfig(file="desk.json", tools="desk_tools")
    changed = {
        "reason": "ordered by mistake", "address": "1 Other Street", "skus": ["RUG-M"],
        "refund_to": "card-1", "new_sku": "CHAIR-1",
    }  # fmt: skip
    tried = 0
    for case in json.loads(done.stdout)["cases"]:
        gold = written[case["case"]]["state"]["expect"]["gold"]
        assert case["score"] == (0.0 if gold else 1.0), case["case"]
        suite = proctor.load_suite(folder / "suite.yaml")
        (model,) = [each for each in suite.cases if each.id == case["case"]]
        right = config.play(model.state.expect.gold, folder)
        for index, call in enumerate(gold):
            variants = [gold[:index] + gold[index + 1 :]]
            for name, value in changed.items():
                if name in call["arguments"] and call["arguments"][name] != value:
                    other = deepcopy(gold)
                    other[index]["arguments"][name] = value
                    variants.append(other)
            for variant in variants:
                tried += 1
                calls = model.state.expect.model_validate({"gold": variant}).gold
                try:
                    reached = config.play(calls, folder)
                except ValueError:  # the shop refuses the call, so the write is missing
                    reached = config.play(calls[:index], folder)
                assert writes(right, reached), (case["case"], variant)
    assert tried >= 20

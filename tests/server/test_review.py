"""Review, promote and compare in a real Chromium: labels by keyboard, corrected rates, the gate."""

import os
import re
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from browser import page_at, violations
from outcome_parts import made_run, suite
from server_parts import TRACE, serving, write
from viewer_parts import hostile_agent, run_suite, shop_agent, shop_suite

from proctor.cli.main import run as command
from proctor.errors import ProctorError
from proctor.results.gate import judge_runs
from proctor.runs import audit
from proctor.runs.annotations import in_random_order, label, labels_of
from proctor.runs.folder import COPY_OF
from proctor.runs.run import Run
from proctor.server.app import Service
from proctor.server.auth import check_tokens
from proctor.server.pages.review import queue_of
from proctor.server.pages.runs import address_name
from proctor.server.store import open_store
from proctor.server.store.store import StoredEvaluation
from proctor.stats.gate import GateRule


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A server with two runs of a shop: a good one, and one in which an agent deletes accounts."""
    folder = tmp_path_factory.mktemp("shop")
    results = folder / "results"
    cases = shop_suite("lamp", "chair", "desk")
    agents = {"fast": shop_agent(), "slow": shop_agent(model="other-model")}
    good = run_suite(cases, agents, results, trials=3)
    flaky = {"fast": shop_agent(False), "slow": shop_agent(model="other-model")}
    bad = run_suite(cases, {**flaky, "hostile": hostile_agent}, results, trials=3)
    here = Path.cwd()
    os.chdir(folder)  # cases are written below the folder that the server runs in
    try:
        with serving(Service(results=results)) as server:
            running: Any = server
            running.good, running.bad = f"suite/{good.name}", f"suite/{bad.name}"
            running.folder, running.results = folder, results
            yield running
    finally:
        os.chdir(here)


@pytest.mark.slow
def test_review_by_keyboard_corrects_the_rate_and_the_gate(browsing, tmp_path) -> None:
    """R-N11: keys label the random queue; the page shows the rate, and the gate fails by it."""
    results = tmp_path / "results"
    good = made_run(results, {"fast": suite([(9, 10)] * 4)}, name="good")
    bad = made_run(results, {"fast": suite([(9, 10)] * 4)}, name="bad")
    for trial in in_random_order(Run(good).trials(), Run(good).run_id)[:24]:
        label(good, trial.name, "pass" if trial.passed else "fail", rater="ana", rule="random")
    assert judge_runs(Run(bad), Run(good)).arms[0].corrected is not None
    with serving(Service(results=results)) as site:
        path = f"/runs/bad/{bad.name}/review?rater=ana&blind=1"
        with page_at(browsing, site, path) as page:
            assert not page.locator("#figures").evaluate("e => e.open")
            assert "The judge" not in page.inner_text("main")
            for number in range(24):
                page.wait_for_selector(f"[role=status]:text-matches('^{number} of')")
                page.wait_for_load_state()  # the script that reads the keys is there
                page.keyboard.press("p" if number % 4 == 0 else "f")
            page.wait_for_selector("[role=status]:text-matches('^24 of')")
            page.wait_for_load_state()
            page.keyboard.press("c")
            page.keyboard.type("pf is typed, not a label")
            page.keyboard.press("Escape")
            page.keyboard.press("b")
            page.wait_for_selector("text=Your label: fail")
            page.wait_for_load_state()
            with page.expect_navigation():
                page.keyboard.press("s")
            page.click("#figures summary")
            rates = page.inner_text("#rates")
        found = labels_of(bad)
        assert [each.verdict for each in found].count("pass") == 6
        assert [each.verdict for each in found].count("skip") == 1
        assert {(each.rater, each.rule, each.blind) for each in found} == {("ana", "random", True)}
        assert "pass rate corrected by labels" in rates
        assert "judge 90 %; 23 labels of 40 trials" in rates
        assert [entry.command for entry in audit.entries(results)].count("label") == 25
        with page_at(browsing, site, f"/compare?run=good/{good.name}&run=bad/{bad.name}") as page:
            text = page.inner_text("main")
            assert "4 unchanged" in text
            # Which trials are labelled, and so the last digits, differ from run to run.
            first = re.search(r"Corrected by labels: first (\d+)", text)
            assert first is not None, text
            assert 80 <= int(first[1]) <= 100
    assert judge_runs(Run(bad), Run(good)).exit_code() == 0
    assert judge_runs(Run(bad), Run(good), rule=GateRule(corrected=True)).verdict == "REGRESSION"
    arguments = ["gate", str(bad), "--against", str(good), "--corrected"]
    assert command([*arguments, "--results", str(results)]) == 1


@pytest.mark.slow
def test_two_raters_and_live_agreement(browsing, shop) -> None:
    """R-N11: a second rater has a queue of its own; kappa and alpha change without reload."""
    path = f"/runs/{shop.good}/review?agent=fast"
    folder = shop.results / shop.good
    with page_at(browsing, shop, f"{path}&rater=ben") as page:
        page.fill("[name=category]", "<b>tone</b>")
        page.click("button[value=pass]")
        page.wait_for_function("() => document.body.innerText.includes('1 of 9 judged')")
        assert "ben and judge agree on 1 of 1 trial" in page.inner_text("#agreement")
        name = labels_of(folder)[0].trial
        label(folder, name, "fail", rater="ana", comment="<i>no</i>")
        page.wait_for_function(
            "() => document.getElementById('agreement').innerText.includes('alpha')"
        )
        assert "ben and ana agree on 0 of 1 trial, kappa 0.00" in page.inner_text("#agreement")
        page.goto(shop.url + f"{path}&rater=cid&rule=disagreement")
        shown = page.inner_text("main")
        assert "ana says fail: <i>no</i>" in shown
        assert "ben says pass, <b>tone</b>" in shown
    assert labels_of(folder)[0].category == "<b>tone</b>"


def test_rules_of_the_queue(tmp_path) -> None:
    """R-N11: split votes and close scores, disputed labels, and one of each new kind of failure."""
    run = Run(
        run_suite(shop_suite("lamp", "chair"), {"bad": shop_agent(False)}, tmp_path, trials=3)
    )
    trials = list(run.trials())
    order = in_random_order(trials, run.run_id)
    assert queue_of("random", run, trials, []) == order
    kinds = queue_of("cluster", run, trials, [])
    assert kinds == [order[0]]
    given = [label(run.path, kinds[0].name, "fail", rater="ana")]
    assert queue_of("cluster", run, trials, given) == []
    assert queue_of("disagreement", run, trials, given) == []
    given.append(label(run.path, kinds[0].name, "pass", rater="ben"))
    assert queue_of("disagreement", run, trials, given) == [kinds[0]]
    close, split = trials[2], trials[4]
    close.score = 0.79
    mixed = {"votes_passed": [True, False, True]}
    split.checks = (msgspec.structs.replace(split.checks[0], actual=mixed), *split.checks[1:])
    assert queue_of("uncertain", run, trials, [])[:2] == [split, close]


def test_only_our_pages_with_a_writing_token_write(tmp_path) -> None:
    """R-N11: other sites, viewers, copies of remote runs and wrong forms change nothing."""
    path = made_run(tmp_path, {"fast": suite([(1, 2)])})
    address = f"/runs/suite/{path.name}/review"
    trial = address_name(next(iter(Run(path).trials())))
    form = {"trial": trial, "verdict": "pass", "rule": "random", "rater": "ana"}
    with serving(Service(results=tmp_path)) as site:
        refused = [
            {},
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "null", "sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ]
        for headers in refused:
            assert httpx.post(site.url + address, data=form, headers=headers).status_code == 403
        ours = {"origin": site.url}
        for wrong, code in (
            ({"verdict": "maybe"}, 400),
            ({"rule": "chosen"}, 400),
            ({"trial": "../../x"}, 404),
            ({"rater": "x" * 300}, 400),
            ({"comment": "x" * 70_000}, 413),
        ):
            reply = httpx.post(site.url + address, data={**form, **wrong}, headers=ours)
            assert reply.status_code == code
        assert labels_of(path) == []
        reply = httpx.post(site.url + address, data=form, headers=ours)
        assert reply.status_code == 303
        assert reply.headers["location"] == f"{address}?rule=random&rater=ana"
        forms = {"origin": "null", "sec-fetch-site": "same-origin"}
        assert httpx.post(site.url + address, data=form, headers=forms).status_code == 303
        assert len(labels_of(path)) == 1
        (path / COPY_OF).write_text("s3://bucket/run")
        assert httpx.post(site.url + address, data=form, headers=ours).status_code == 403
        assert "Read-only: This is a copy of the run at s3://" in httpx.get(site.url + address).text
        (path / COPY_OF).unlink()
    with serving(Service(results=tmp_path), token="writer", viewer_token="viewer") as site:
        for token, code in (("viewer", 403), ("writer", 303), ("other", 401)):
            given = {"authorization": f"Bearer {token}", "origin": site.url}
            reply = httpx.post(site.url + address, data=form, headers=given)
            assert reply.status_code == code
            page = httpx.get(site.url + address, headers=given).text
            assert ("Read-only: You may read" in page) == (token == "viewer")
            runs = httpx.get(f"{site.url}/runs", headers=given).text
            assert (">read-only<" in runs) == (token == "viewer")
        entered = httpx.get(f"{site.url}/runs?token=viewer")
        assert entered.status_code == 303
    for token in (None, "same"):
        with pytest.raises(ProctorError, match="needs another token"):
            check_tokens(token, "same")


@pytest.mark.slow
def test_promote_previews_and_writes_a_case(browsing, shop) -> None:
    """R-N12: one click writes the verified case of the preview; other files are left alone."""
    run = Run(shop.results / shop.bad)
    failing = next(t for t in run.trials() if t.agent == "fast" and t.case == "lamp")
    path = f"/runs/{shop.bad}/promote/{address_name(failing)}"
    with page_at(browsing, shop, f"/runs/{shop.bad}/trial/{address_name(failing)}") as page:
        page.click("text=Make a test case")
        page.wait_for_selector("pre.preview")
        page.wait_for_load_state()
        preview = page.inner_text("pre.preview")
        assert "id: lamp-regression" in preview
        assert "tool: delete_account" in preview
        page.click("text=Write the case")
        page.wait_for_selector("text=Wrote case lamp-regression to regression.yaml")
    written = shop.folder / "regression.yaml"
    assert written.read_text() == preview
    assert (shop.folder / "regression.tools.yaml").is_file()
    ours = {"origin": shop.url}
    # A second case is added; a file of somebody else is not touched, nor one outside.
    more = {"id": "second", "file": "regression.yaml", "write": "1"}
    assert httpx.post(shop.url + path, data=more, headers=ours).status_code == 200
    assert written.read_text().count("- id:") == 2
    # A copy of a run takes no labels, but the case is not written into it.
    (run.path / COPY_OF).write_text("s3://bucket/run")
    third = {**more, "id": "third"}
    assert httpx.post(shop.url + path, data=third, headers=ours).status_code == 200
    (run.path / COPY_OF).unlink()
    assert written.read_text().count("- id:") == 3
    (shop.folder / "mine.yaml").write_text("# my suite\nversion: 1\n")
    for name in ("mine.yaml", "../x.yaml", "/tmp/x.yaml", "agent.py", "a\0.yaml"):
        reply = httpx.post(shop.url + path, data={**more, "file": name}, headers=ours)
        assert reply.status_code == 409
    assert (shop.folder / "mine.yaml").read_text() == "# my suite\nversion: 1\n"
    assert httpx.post(shop.url + path, data=more).status_code == 403
    passing = next(t for t in run.trials() if t.agent == "slow")
    shown = httpx.get(f"{shop.url}/runs/{shop.bad}/promote/{address_name(passing)}")
    assert "no check tells the failing trace from the good one" in shown.text


@pytest.mark.slow
def test_two_runs_and_two_trials_compared(browsing, shop) -> None:
    """R-N12: cases by what happened to them; steps of two models aligned, words marked."""
    address = f"/compare?run={shop.good}&run={shop.bad}"
    with page_at(browsing, shop, address) as page:
        text = page.inner_text("main")
        assert "REGRESSION" in text
        assert "3 regressed" in text
        assert "3 unchanged" in text
        assert "−100 points" in text
        page.click("text=compare trials >> nth=0")
        page.wait_for_selector(".step.only")
        page.wait_for_load_state()
        text = page.inner_text("main")
        assert "call delete_account" in text
        assert page.locator(".step.only:has-text('delete_account')").count() == 1
        assert page.locator("del").count()
        assert page.locator("ins").count()
    run = Run(shop.results / shop.good)
    names = [address_name(next(t for t in run.trials() if t.agent == a)) for a in ("fast", "slow")]
    reply = httpx.get(f"{shop.url}/runs/{shop.good}/compare?a={names[0]}&b={names[1]}").text
    assert "0 on one side only" in reply
    assert "other-model" in reply
    # A list of runs sends the latest first: the older is the first arm, unless it is swapped.
    for order, second in (("", shop.bad), ("&swap=1", shop.good)):
        reply = httpx.get(f"{shop.url}/compare?run={shop.bad}&run={shop.good}{order}").text
        chosen = re.findall(r'<option value="([^"]+)" selected>', reply)
        assert chosen[1] == second
        assert f'aria-label="Cases of fast @ {second}"' in reply
        # The agent with regressed cases comes first; both runs are named above.
        assert re.findall(r'<h2 [^>]*id="pair-\d+">([^<]+)<', reply) == ["fast", "slow"]
    reply = httpx.get(f"{shop.url}/compare?run=&run={shop.bad}").text
    assert "Select two runs" in reply
    for wrong in ("run=nowhere&run=x", f"run={shop.good}&run={shop.good}", "run=../..&run=x"):
        reply = httpx.get(f"{shop.url}/compare?{wrong}")
        assert reply.status_code == 200
        assert "problem" in reply.text


@pytest.mark.slow
def test_a_live_trace_is_labelled(browsing, tmp_path) -> None:
    """R-N11: a label is stored with the trace, survives its evaluation, and is shown."""
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    write(store, {"id": 1, "name": "answer"})
    form = {"verdict": "pass", "rater": "ben", "comment": "fine"}
    with serving(Service(store=store)) as site:
        with page_at(browsing, site, f"/traces/{TRACE}") as page:
            page.click("text=Label this trace")
            page.fill("[name=rater]", "ana")
            page.fill("[name=comment]", "<b>wrong</b>")
            page.press("[name=comment]", "Enter")  # no verdict: nothing is sent
            page.focus("button[value=fail]")
            page.keyboard.press("Enter")
            page.wait_for_url("**rater=ana")
            page.click("text=Evaluation")
            assert "label:ana" in page.inner_text("main")
            assert "<b>wrong</b>" in page.inner_text("main")
            assert violations(page) == []
        address = f"{site.url}/traces/{TRACE}/label"
        assert httpx.post(address, data=form).status_code == 403
        ours = {"origin": site.url}
        for wrong, code in (({"verdict": "x"}, 400), ({"rater": " "}, 400)):
            assert httpx.post(address, data={**form, **wrong}, headers=ours).status_code == code
        unknown = f"{site.url}/traces/{'0' * 32}/label"
        assert httpx.post(unknown, data=form, headers=ours).status_code == 404
        for verdict in ("fail", "pass"):
            sent = httpx.post(address, data={**form, "verdict": verdict}, headers=ours)
            assert sent.status_code == 303
        store.put_evaluations(
            TRACE, [StoredEvaluation(TRACE, "quality", 0.5, None, "{}", 1)], score=0.5, findings=0
        )
        found = [(each.name, each.label) for each in store.evaluations(TRACE)]
        assert found == [("label:ana", "fail"), ("label:ben", "pass"), ("quality", None)]
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    with serving(Service(store=store, temporary=True)) as site:
        assert "Read-only: These traces" in httpx.get(f"{site.url}/traces/{TRACE}").text
        sent = httpx.post(
            f"{site.url}/traces/{TRACE}/label", data=form, headers={"origin": site.url}
        )
        assert sent.status_code == 403


@pytest.mark.slow
def test_new_pages_are_accessible_and_hostile_text_is_text(browsing, shop) -> None:
    """R-N12: no violation of axe-core, light and dark, wide and narrow; no agent's script."""
    run = Run(shop.results / shop.bad)
    odd = address_name(next(t for t in run.trials() if t.agent == "hostile"))
    fast = address_name(next(t for t in run.trials() if t.agent == "fast"))
    base = f"/runs/{shop.bad}"
    paths = [
        f"{base}/review?rater=eve&trial={odd}",
        f"{base}/review?rater=eve&blind=1",
        f"{base}/review?rater=eve&rule=disagreement",
        f"{base}/promote/{fast}",
        f"{base}/promote/{odd}",
        f"{base}/compare?a={odd}&b={fast}",
        f"/compare?run={shop.good}&run={shop.bad}",
        "/compare",
    ]
    pictures = os.environ.get("PROCTOR_PICTURES")
    for theme, width, numbers in (
        ("light", 1440, range(8)),
        ("dark", 1280, (0, 3, 5, 6)),
        ("light", 390, (0, 3, 5, 6)),
    ):
        for number, path in ((at, paths[at]) for at in numbers):
            with page_at(browsing, shop, path, theme=theme, width=width) as page:
                assert page.evaluate("window.hacked") is None
                assert page.locator("main img[src=x]").count() == 0
                wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{path} at {width} px is {wide} px too wide"
                assert violations(page) == []
                if pictures:
                    page.screenshot(path=f"{pictures}/{number}-{theme}-{width}.png", full_page=True)

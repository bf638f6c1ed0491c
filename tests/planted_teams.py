# ruff: noqa: E501 - wordings on one line each
"""Long logs of agent teams that failed, built from a seed: the noise of real work around one cause.

Seven designs: a ledger team with a web browser, hired experts with a terminal, a software team, a
desk of specialists behind a router, solvers with a critic, a planner with an executor and an
environment, and a research pipeline. Most causes are not admitted by their author; pages hold the
right and the wrong value; verifiers approve; the final answer often comes from another agent. About
a quarter of the causes are in the first turn of a worker, about half in the second half of the log.
"""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from planted import Planted

from proctor.trace.assemble import Collector
from proctor.trace.formats import transcript

TOPICS = (
    ("ski lifts", "vertical metres", "the resorts of Tyrol", ("Alpbach", "Fiss", "Kappl", "Obergurgl", "Serfaus", "Tux")),
    ("lighthouses", "candela", "the Baltic coast", ("Arkona", "Dornbusch", "Kullen", "Rixhoft", "Sandhammaren", "Ventspils")),
    ("botanical gardens", "species", "northern Italy", ("Bergamo", "Cremona", "Padova", "Pavia", "Torino", "Varese")),
    ("county libraries", "registered readers", "Connemara and around", ("Athenry", "Clifden", "Gort", "Loughrea", "Oughterard", "Tuam")),
    ("cheese dairies", "litres of milk", "the Jura", ("Arbois", "Champagnole", "Morez", "Poligny", "Pontarlier", "Salins")),
    ("tram depots", "vehicles", "the Ruhr area", ("Bochum", "Essen", "Gelsenkirchen", "Herne", "Mulheim", "Witten")),
    ("amateur orchestras", "concerts", "the Scottish Borders", ("Duns", "Galashiels", "Hawick", "Kelso", "Melrose", "Peebles")),
    ("salmon ladders", "fish counted", "the Oregon coast", ("Alsea", "Coquille", "Nehalem", "Siletz", "Siuslaw", "Umpqua")),
)  # fmt: skip
NAV = (
    "Home",
    "About us",
    "News",
    "Press",
    "Contact",
    "Login",
    "Newsletter",
    "Cookie settings",
    "Imprint",
    "Accessibility",
    "Jobs",
    "Events",
    "Shop",
    "Donate",
    "Archive",
    "Search",
    "Language: EN",
    "Share this page",
)
FILLER = (
    "This site uses cookies to improve your experience. Accept all | Reject | Manage preferences.",
    "Published by the statistics office. Figures are revised each spring.",
    "The association was founded by volunteers and is financed by membership fees.",
    "Download as PDF (2.4 MB). Print version. Citation guidelines.",
    "Photo: view from the east in late autumn. All rights reserved.",
    "Related articles: funding round closed; new board elected; opening hours changed.",
    "Visitors with reduced mobility can use the side entrance.",
    "In earlier decades no separate counts were kept, and the totals include neighbouring places.",
)  # fmt: skip


class Task:
    """A question with its table: the right value, and a wrong one that stands beside it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.kind, self.unit, self.region, names = rng.choice(TOPICS)
        self.names = rng.sample(names, 5)
        self.year = rng.randint(2003, 2021)
        self.years = [self.year + n for n in (-2, -1, 0, 1)]
        self.rows = {name: [rng.randint(210, 9890) for _ in self.years] for name in self.names}
        self.by_name = rng.random() < 0.35
        column = [self.rows[name][2] for name in self.names]
        self.best = self.names[column.index(max(column))]
        self.place = self.best if self.by_name else rng.choice(self.names)
        right = self.rows[self.place][2]
        other = rng.choice([name for name in self.names if name != self.place])
        slip = self.rows[self.place][rng.choice((1, 3))]
        self.true, self.wrong = (self.best, other) if self.by_name else (f"{right}", f"{slip}")
        if self.true == self.wrong:
            self.wrong = f"{right + 117}"

    def pick(self, *texts: str) -> str:
        """Draw a wording; {fields} are the task's, other braces stay."""
        text = self.rng.choice(texts)
        for name in ("kind", "unit", "region", "year", "place", "true", "wrong"):
            text = text.replace("{" + name + "}", str(getattr(self, name)))
        return text

    @property
    def question(self) -> str:
        if self.by_name:
            return f"Of the {self.kind} in {self.region}, which one had the most {self.unit} in {self.year}? Give the name only."
        return f"According to the yearly overview of {self.kind} in {self.region}, how many {self.unit} did {self.place} have in {self.year}? Answer with a number."

    def table(self) -> str:
        head = f"{self.kind} | " + " | ".join(map(str, self.years))
        return "\n".join(
            [head, *(f"{name} | " + " | ".join(map(str, row)) for name, row in self.rows.items())]
        )

    def page(self, *, table: bool, lines: int = 12) -> str:
        """A page as a browser tool dumps it, with or without the table that is needed."""
        rng = self.rng
        out = rng.sample(NAV, 7)
        body = [rng.choice(FILLER) for _ in range(lines)]
        if table:
            body.insert(rng.randrange(len(body)), self.table())
        else:
            body.insert(
                1, f"{rng.randint(3, 40)} results for {self.kind}. Page 1 of {rng.randint(2, 9)}."
            )
        return "\n".join(
            [
                *out,
                *body,
                f"(c) {self.year + 3} tel. {rng.randint(1000, 9999)} {rng.randint(100, 999)}",
            ]
        )

    def seen(self, *, table: bool = False) -> str:
        share = self.rng.randint(8, 70)
        where = self.rng.choice(
            ("at the top of the page", f"{self.rng.randint(5, 60)}% down the page")
        )
        return self.pick(
            f"Here is a screenshot of the page. The viewport shows {share}% of the webpage and is positioned {where}. Detected text:\n",
            f"Current page ({share}% visible, {where}):\n",
            "Page content follows.\n",
        ) + self.page(table=table, lines=self.rng.randint(4, 14))


class Log:
    """Messages of one log, and the index of the cause."""

    def __init__(self, task: Task, *, names: bool) -> None:
        self.task, self.names = task, names
        self.history: list[dict[str, Any]] = []
        self.cause: tuple[str, int] = ("", -1)

    def say(self, who: str, *texts: str, cause: bool = False, role: str = "assistant") -> None:
        speaker = who.split(" (", maxsplit=1)[0]
        if cause:
            self.cause = (speaker, len(self.history))
        content = self.task.pick(*texts)
        self.history.append(
            {"content": content, "name": who, "role": role}
            if self.names
            else {"content": content, "role": who}
        )


# -- a ledger team: an orchestrator with a fact sheet and progress ledgers, a browser, a reader, a coder


def ledger_team(task: Task, fault: str, rng: random.Random) -> Log:
    log = Log(task, names=rng.random() < 0.3)
    boss, web, reader, coder, shell = rng.choice(
        (("Orchestrator", "WebSurfer", "FileSurfer", "Assistant", "ComputerTerminal"),
         ("LeadOrchestrator", "Browser", "DocReader", "Coder", "Executor"),
         ("Manager", "web_agent", "file_agent", "coding_agent", "terminal"))
    )  # fmt: skip
    say = log.say
    say("human", task.question, role="user")
    wrong_plan = fault == "plan drops a condition"
    aim = f"the overview of {task.kind} for {task.year - 1 if wrong_plan else task.year}"
    say(f"{boss} (thought)", f"""We are working on the following request:\n\n{task.question}\n\nTeam:\n{web}: opens pages, clicks, scrolls.\n{reader}: reads local files.\n{coder}: writes code and reasons.\n{shell}: runs code.\n
1. GIVEN: the region {task.region}.\n2. TO LOOK UP: {aim}.\n3. TO DERIVE: nothing else.\n4. EDUCATED GUESSES: the office publishes one table per year.\n
Plan:\n- {web} searches for {aim}.\n- {web} reads the table.\n- {coder} states the result.""", cause=wrong_plan)  # fmt: skip

    def ledger(done: bool, loop: bool, who: str, what: str) -> None:
        say(f"{boss} (thought)", "Updated ledger:\n" + json.dumps({
            "is_request_satisfied": {"reason": task.pick("The figure is not known yet.", "We still need the table.") if not done else task.pick("We have what was asked for.", "The team gave a result."), "answer": done},
            "is_in_loop": {"reason": task.pick("Steps differ.", "No repetition so far.") if not loop else task.pick("The same page was opened again.", "Similar requests were made before."), "answer": loop},
            "is_progress_being_made": {"reason": task.pick("A new page was opened.", "The last step helped somewhat."), "answer": not loop},
            "next_speaker": {"reason": task.pick("It can do this.", "Right tool for the step."), "answer": who},
            "instruction_or_question": {"reason": "next step", "answer": what},
        }, indent=1))  # fmt: skip

    def order(who: str, what: str, *, loop: bool = False) -> None:
        ledger(False, loop, who, what)
        say(f"{boss} (-> {who})", what)

    ask_search = task.pick(
        "Please search for the yearly overview of {kind} in {region}.",
        "Search the web for {kind} {region} {unit} {year} overview.",
        "Find the official overview page of {kind} for {region}.",
    )
    ask_open = task.pick(
        "Please open the overview for {year} and look for the table with {unit}.",
        "Open the result of the statistics office and scroll to the table of {unit}.",
        "Click the entry for {year} and show me the table.",
    )
    ask_read = (
        task.pick(
            "Please read the value for {year} off the table of {unit}.",
            "Which value does the table give for {year}?",
            "Report what the table says about {unit} in {year}.",
        )
        if not task.by_name
        else "Compare the places in the table for {year} and tell me which has the most {unit}."
    )
    found = task.pick("The table gives {true} for {year}.", "For {year} the entry is {true}.")
    misread = task.pick(
        "The table gives {wrong} for {year}.",
        "For {year} the entry is {wrong}.",
        "Reading the row, it is {wrong}.",
    )
    final = "{wrong}"

    def search(*, cause: bool = False) -> None:
        order(web, ask_search)
        if cause:
            say(
                web,
                task.pick(
                    f"I typed '{rng.choice(task.names)} hotels booking' into the search bar. ",
                    "I clicked 'Cheap rental cars for your holiday'. ",
                    "I clicked 'Sponsored: the best deals for families'. ",
                )
                + task.seen()
                + "\n"
                + task.pick("Rated by guests: {wrong}", "Offer no. {wrong}"),
                cause=True,
            )
        else:
            say(
                web,
                task.pick(
                    "I typed '{kind} {region} {unit}' into the search bar. ",
                    "I entered '{kind} {region} overview {year}' as a query. ",
                )
                + task.seen(),
            )

    def wander(times: int) -> None:
        for n in range(times):
            order(
                web,
                task.pick(
                    "Please scroll down to find the table of {unit}.",
                    "Go back to the results and try another entry on {kind}.",
                    "Look for a link to the yearly figures of {region}.",
                    "Please check whether there is an archive with older years.",
                ),
                loop=n > 2 and rng.random() < 0.4,
            )
            say(
                web,
                task.pick(
                    "I scrolled down one page in the browser. ",
                    "I clicked 'Archive'. ",
                    "I navigated back to the results. ",
                    "I clicked 'Figures by place'. ",
                )
                + task.seen(),
            )

    long = rng.randint(0, 12)
    if fault == "wrong first search":
        search(cause=True)
        wander(2 + long)
        order(web, ask_read)
        say(web, misread)
    elif fault == "wrong click late":
        search()
        wander(3 + long)
        order(web, ask_open)
        say(
            web,
            task.pick(
                "I clicked 'Community forum: holiday photos'. ",
                "I clicked 'Terms and conditions'. ",
                "I clicked 'Football results of the weekend'. ",
            )
            + task.seen()
            + "\n"
            + task.pick("Posts: {wrong} by {wrong} members", "Reference {wrong}"),
            cause=True,
        )
        order(web, ask_open, loop=True)
        say(web, "I scrolled down one page in the browser. " + task.seen())
        order(web, ask_read)
        say(web, misread)
    elif fault == "misread table":
        search()
        wander(long)
        order(web, ask_open)
        say(web, "I clicked the entry of the office. " + task.seen(table=True))
        order(web, ask_read)
        say(
            web,
            misread
            + " "
            + task.pick("Let me know if more is needed.", "This is from the table on the page."),
            cause=True,
        )
    elif fault == "stuck without a new idea":
        search()
        order(web, ask_open)
        say(
            web,
            task.pick(
                "I clicked the first link. The page shows a spinner and no content. ",
                "The page answers 'Access denied'. ",
                "I clicked the entry, and the same page is still shown. ",
            )
            + task.page(table=False, lines=3),
            cause=True,
        )
        for _ in range(4 + long):
            order(web, ask_open, loop=True)
            say(
                web,
                task.pick(
                    "I clicked the first link again. Still a spinner. ",
                    "The page is unchanged. ",
                    "I clicked the same entry. ",
                )
                + task.page(table=False, lines=3),
            )
        final = rng.choice(("{wrong}", "Unable to determine"))
    elif fault == "browser answers from memory":
        search()
        wander(long)
        order(web, ask_read)
        say(
            web,
            misread
            + " "
            + task.pick(
                "I know this from general knowledge of {region}.",
                "I did not open the table for this.",
            ),
            cause=True,
        )
    elif fault == "reader takes the wrong sheet":
        search()
        wander(long // 2)
        order(web, "Please download the spreadsheet with all years.")
        say(web, "I downloaded overview.xlsx to the working folder. " + task.seen())
        order(reader, "Open overview.xlsx and read the value for {year}.")
        say(
            reader,
            f"File overview.xlsx, sheet {task.year - 1} of {task.years}. Address: overview.xlsx\n"
            + misread,
            cause=True,
        )
    elif fault == "code filters wrongly":
        search()
        wander(long)
        order(web, ask_open)
        say(web, "I clicked the entry of the office. " + task.seen(table=True))
        order(coder, "Write code that selects the row and the year {year} from the table.")
        say(
            coder,
            f"```python\nrows = {json.dumps(task.rows)}\nyears = {task.years}\nprint(rows)\nprint({'max(rows, key=lambda n: rows[n][1])' if task.by_name else f'rows[{task.place!r}][years.index({task.year}) - 1]'})\n```",
            cause=True,
        )
        order(shell, "Run the code.")
        say(shell, "The script ran, then exited with Unix exit code: 0\nIts output was:\n{wrong}")
        order(coder, "What is the result?")
        say(coder, misread)
    elif fault == "assistant makes it up":
        search()
        wander(long)
        order(coder, "Summarise what we know and give the value for {year}.")
        say(
            coder,
            task.pick(
                "From the pages seen so far it follows that the value is {wrong}.",
                "Considering the information at hand, {wrong} is the value for {year}.",
            ),
            cause=True,
        )
    elif fault == "boss concludes against the page":
        search()
        wander(long)
        order(web, ask_open)
        say(web, "I clicked the entry of the office. " + task.seen(table=True))
        order(web, ask_read)
        say(web, found)
    elif fault == "boss stops too early":
        search()
        wander(3 + long)
    elif wrong_plan:
        search()
        wander(long)
        order(web, f"Please open the overview for {task.year - 1} and read the table.")
        say(web, "I clicked the entry of the office. " + task.seen(table=True))
        order(web, f"Report the value for {task.year - 1}.")
        say(web, task.pick("The table gives {wrong}.", "It says {wrong}."))
    blamed = fault in ("boss concludes against the page", "boss stops too early")
    if rng.random() < 0.5 and not blamed:
        order(coder, "Please verify the result and phrase the answer.")
        say(
            coder,
            task.pick(
                f"I checked the conversation; the result is consistent: {final}.",
                f"This looks right to me. The value is {final}.",
            ),
        )
    ledger(True, False, boss, "finish")
    say(
        f"{boss} (termination condition)",
        task.pick(
            "The request is satisfied.",
            "Maximum number of rounds reached.",
            "No further input needed.",
        )
        + f"\nFINAL ANSWER: {final}",
        cause=blamed,
    )
    return log


# -- experts hired for the task, with a terminal and a manager's plan in the first message


def hired_experts(task: Task, fault: str, rng: random.Random) -> Log:
    log = Log(task, names=True)
    analyst, coder, checker = rng.choice(
        (("TouristData_Expert", "Python_Expert", "Verification_Expert"), ("RegionalStatistics_Expert", "DataExtraction_Expert", "Validation_Expert"),
         ("Research_Expert", "Scraping_Expert", "Quality_Expert"), ("Data_Collection_Expert", "Numerics_Expert", "Proofreading_Expert"))
    )  # fmt: skip
    say, terminal = log.say, "Computer_terminal"
    say(
        analyst,
        f"You are given: (1) a task and advice from your manager with a specific plan and (2) a general task.\n# General Task: {task.question}\n# Task and suggestion from manager\n## Plan\n1. Collect the overview.\n2. Extract the value for {task.year}.\n3. Verify the result.\n## Output format\nA short answer.\n## Constraints\n- The result must be exact.",
        role="user",
    )

    def run(output: str, code: int = 0) -> None:
        state = "execution succeeded" if not code else "execution failed"
        say(terminal, f"exitcode: {code} ({state})\nCode output: {output}", role="user")

    fetch = "```python\nimport pandas as pd\nt = pd.read_html(URL)[0]\nprint(t)\n```"
    select = "```python\nprint(t.loc[PLACE, YEAR])\n```".replace("PLACE", repr(task.place)).replace(
        "YEAR", str(task.year)
    )
    slip = "```python\nprint(t.loc[PLACE].iloc[1])\n```".replace("PLACE", repr(task.place))
    recover = rng.random() < 0.5
    value = "{wrong}"

    def detour() -> None:
        say(coder, "I start with the download.\n" + fetch)
        run(
            'Traceback (most recent call last):\n  File "t.py", line 2\nurllib.error.URLError: name resolution failed',
            1,
        )
        say(
            coder,
            task.pick("The address had a typo, corrected:\n", "Second try with the mirror:\n")
            + fetch,
        )

    if fault == "sample data at once":
        say(
            analyst,
            task.pick(
                "To get going we define the table ourselves:\n",
                "Here is a table with the figures for the extraction step:\n",
            )
            + f"```python\nt = {{{task.place!r}: {{{task.year}: {task.wrong!r}}}}}\nprint(t)\n```",
            cause=True,
        )
        run("{'" + task.place + "': {" + str(task.year) + ": '{wrong}'}}")
        say(coder, task.pick("The extraction gives {wrong}.", "Selecting the year yields {wrong}."))
    elif fault == "first expert states it":
        say(
            analyst,
            task.pick(
                "The overview of {region} is known: the value for {year} is {wrong}. ",
                "Step 1 is quickly done. For {year} the overview lists {wrong}. ",
            )
            + task.pick("Next, please extract and verify.", "I hand over to the next expert."),
            cause=True,
        )
        say(
            coder,
            task.pick(
                "Extraction is then trivial: {wrong}.", "I take {wrong} from the previous message."
            ),
        )
    elif fault == "first code is wrong":
        say(
            analyst,
            task.pick(
                "I fetch the overview and select the entry:\n",
                "Collecting and extracting in one go:\n",
            )
            + fetch
            + "\n"
            + slip,
            cause=True,
        )
        run(task.table() + "\n{wrong}")
        say(coder, task.pick("So the value is {wrong}.", "Output received: {wrong}."))
    elif fault == "second code is wrong":
        say(
            analyst,
            task.pick(
                "I suggest we read the overview with pandas, then select the year.",
                "Plan confirmed; the source is the page of the office. Please write the code.",
            ),
        )
        if recover:
            detour()
        else:
            say(coder, "Download first.\n" + fetch)
        run(task.table())
        say(coder, task.pick("Now the selection:\n", "Extraction:\n") + slip, cause=True)
        run("{wrong}")
        say(analyst, task.pick("The value for {year} is {wrong}.", "We obtained {wrong}."))
    elif fault == "misreads the output":
        say(coder, "Download and selection:\n" + fetch + "\n" + select)
        if recover:
            run("Traceback (most recent call last):\nKeyError: " + str(task.year), 1)
            say(coder, "The header is a string; fixed:\n" + fetch + "\n" + select)
        run(task.table() + "\n{true}")
        say(
            analyst,
            task.pick(
                "From the output, the value for {year} is {wrong}.",
                "The terminal shows the table; the entry is {wrong}.",
            ),
            cause=True,
        )
    elif fault == "checker overturns it":
        say(analyst, "The source is the page of the office; let us read it.")
        say(coder, fetch + "\n" + select)
        run(task.table() + "\n{true}")
        say(coder, "The value is {true}.")
        say(
            checker,
            task.pick(
                "In my records the entry is {wrong}; the page must be outdated. ",
                "The right reading of the header shifts the column by one, which gives {wrong}. ",
            )
            + "The answer is {wrong}. TERMINATE",
            cause=True,
        )
        return log
    elif fault == "gives up on the source":
        say(analyst, "Let us fetch the overview.")
        say(coder, fetch)
        run(
            "Traceback (most recent call last):\nurllib.error.HTTPError: HTTP Error 403: Forbidden",
            1,
        )
        say(
            coder,
            task.pick(
                "The page cannot be read by a program. We continue with an approximate value of {wrong} for {year}.",
                "Since the site refuses, {wrong} will serve as the value.",
            ),
            cause=True,
        )
        say(analyst, "All right, {wrong} then.")
    elif fault == "fails again and again":
        say(analyst, "We need the table from the page.")
        say(coder, fetch, cause=True)
        for _ in range(rng.randint(2, 5)):
            run("NameError: name 'URL' is not defined", 1)
            say(coder, task.pick("Trying again:\n", "Once more:\n") + fetch)
        run("NameError: name 'URL' is not defined", 1)
        value = rng.choice(("not available", "{wrong}"))
    elif fault == "wrong table taken":
        say(
            analyst,
            task.pick(
                "I looked for the overview and use this address: example.org/{kind}/forecast-next-year. ",
                "As a source I propose the leaflet for tourists. ",
            )
            + "The next expert can load it.",
            cause=True,
        )
        say(coder, fetch + "\n" + select)
        run("{wrong}")
        say(coder, "The loaded table gives {wrong}.")
    for _ in range(rng.randint(0, 2)):
        say(
            rng.choice((analyst, coder)),
            task.pick(
                "I agree with the steps so far.",
                "Is there anything left to check? Otherwise we go to the verification.",
                "Thanks. Over to the verification.",
            ),
        )
    say(
        checker,
        task.pick(
            f"I verified the steps, they are in order. The answer is {value}. TERMINATE",
            f"Verification: the source was used and the value copied correctly. The answer is {value}. TERMINATE",
            f"Confirmed. The answer is {value}. TERMINATE",
        ),
    )
    return log


# -- a software team: requirements, design, code, tests


def software_team(task: Task, fault: str, rng: random.Random) -> Log:
    log = Log(task, names=rng.random() < 0.5)
    pm, architect, dev, tester = rng.choice(
        (("ProductManager", "Architect", "Engineer", "QaEngineer"), ("Product Owner", "Tech Lead", "Programmer", "Tester"), ("CEO", "CTO", "Programmer", "Code Reviewer"))
    )  # fmt: skip
    say = log.say
    say(
        "user",
        f"Build a command line tool that loads the table of {task.kind} and prints the total of {task.unit} per place for a year. Requirements: sorted by total, largest first; places without a value are skipped; exit code 2 for an unknown year.",
        role="user",
    )
    say(
        pm,
        "Requirements document\n"
        + json.dumps(
            {
                "goal": f"totals of {task.unit}",
                "stories": ["as a clerk I see totals", "as a clerk I choose a year"],
                "requirements": [
                    "sorted by name"
                    if fault == "requirement lost"
                    else "sorted by total, largest first",
                    "skip missing values",
                    "exit code 2 for an unknown year",
                ],
            },
            indent=1,
        ),
        cause=fault == "requirement lost",
    )
    say(
        architect,
        "Design\nfiles: main.py, table.py, report.py\n"
        + (
            "table.py: load(path) -> dict[str, int], one value per place; the year is not kept\n"
            if fault == "design loses the year"
            else "table.py: load(path, year) -> dict[str, int | None]\n"
        )
        + "report.py: lines(totals) -> list[str]\nmain.py: parse arguments, call both",
        cause=fault == "design loses the year",
    )
    body = {
        "missing values counted": "def load(path, year):\n    rows = csv.DictReader(open(path))\n    return {r['place']: int(r[str(year)] or 0) for r in rows}",
        "unknown year ignored": "def load(path, year):\n    rows = csv.DictReader(open(path))\n    return {r['place']: int(v) for r in rows if (v := r.get(str(year)))}",
    }.get(
        fault,
        "def load(path, year):\n    rows = list(csv.DictReader(open(path)))\n    if rows and str(year) not in rows[0]:\n        raise SystemExit(2)\n    return {r['place']: int(r[str(year)]) for r in rows if r[str(year)]}",
    )
    order = (
        "sorted(t)"
        if fault == "requirement lost"
        else "sorted(t, key=t.get)"
        if fault == "order reversed"
        else "sorted(t, key=t.get, reverse=True)"
    )
    say(
        dev,
        "table.py\n```python\nimport csv\n\n" + body + "\n```",
        cause=fault in ("missing values counted", "unknown year ignored"),
    )
    say(
        dev,
        f"report.py\n```python\ndef lines(t):\n    return [f'{{n}}: {{t[n]}}' for n in {order}]\n```",
        cause=fault == "order reversed",
    )
    say(
        dev,
        "main.py\n```python\nimport sys, table, report\nprint('\\n'.join(report.lines(table.load(sys.argv[1], int(sys.argv[2])))))\n```",
    )
    for n in range(rng.randint(0, 5)):
        say(
            tester,
            task.pick(
                "Please add a docstring to each function.",
                "Line 4 of table.py leaves the file open.",
                "Could the report have a header line?",
            ),
        )
        say(
            dev,
            task.pick(
                "Added the docstrings.",
                "The file is closed by a with block now.",
                "The header is printed unless --plain is given.",
            )
            + f"\n```python\n# revision {n + 2}\n```",
        )
    say(
        tester,
        "```python\nfrom table import load\n\ndef test_load(tmp_path):\n    (tmp_path / 't.csv').write_text('place,2010\\nA,3\\n')\n    assert load(tmp_path / 't.csv', 2010) == {'A': 3}\n```",
    )
    if fault == "failing test waved through":
        say(
            "terminal",
            "exit code 1\nFAILED test_table.py::test_unknown_year - AssertionError: 0 != 2\n1 failed, 3 passed",
            role="user",
        )
        say(
            tester,
            task.pick(
                "The one failure is a matter of taste; the tool can be released.",
                "Three of four pass, which is enough for a first version. Approved.",
            ),
            cause=True,
        )
    else:
        say("terminal", "exit code 0\n4 passed", role="user")
        say(tester, task.pick("All tests pass. Approved.", "No issues left, ready for delivery."))
    say(
        pm,
        task.pick(
            "Accepted. The tool is delivered.", "Delivered to the customer, closing the task."
        ),
    )
    return log


# -- a router with specialists that answer in JSON and call back-ends


def service_desk(task: Task, fault: str, rng: random.Random) -> Log:
    log = Log(task, names=True)
    router, booking, billing, policy = rng.choice(
        (("supervisor", "booking_agent", "billing_agent", "policy_agent"), ("triage_agent", "orders", "payments", "rules"), ("front_desk", "TravelAgent", "FinanceAgent", "ComplianceAgent"))
    )  # fmt: skip
    say = log.say
    ref = f"{rng.choice('KLMN')}{rng.randint(2000, 8999)}"
    price, fee = rng.randint(120, 880), rng.choice((15, 25, 40))
    due, other = price - fee, price + fee
    day = f"{task.year}-0{rng.randint(1, 8)}-1{rng.randint(0, 8)}"
    say(
        "customer",
        f"Please cancel booking {ref} for {day} and tell me how much I get back.",
        role="user",
    )
    say(
        router,
        json.dumps(
            {
                "next": booking if fault != "routed past the booking" else billing,
                "reason": "cancellation"
                if fault != "routed past the booking"
                else "asks about money",
            }
        ),
        cause=fault == "routed past the booking",
    )
    used = ref if fault != "wrong booking opened" else ref[:-1] + str((int(ref[-1]) + 3) % 10)
    if fault != "routed past the booking":
        say(
            booking,
            json.dumps({"tool": "get_booking", "arguments": {"ref": used}}),
            cause=fault == "wrong booking opened",
        )
        say(
            "tool_output",
            json.dumps(
                {
                    "ref": used,
                    "date": day,
                    "price": price,
                    "fare": "flex",
                    "status": "confirmed",
                    "passengers": [{"name": "A. Lind", "seat": "12C"}],
                }
            ),
            role="tool",
        )
        for _ in range(rng.randint(0, 2)):
            say(
                booking,
                task.pick(
                    "I have the booking. The fare is flex.",
                    "Booking loaded; passing on to the next colleague.",
                ),
            )
            say(
                router,
                json.dumps({"next": policy, "reason": task.pick("needs the rule", "fee unknown")}),
            )
            say(
                policy,
                task.pick(
                    "Checking the rule for this fare.", "One moment, the terms have several parts."
                ),
            )
    say(router, json.dumps({"next": policy, "reason": "cancellation fee"}))
    say(policy, json.dumps({"tool": "get_terms", "arguments": {"fare": "flex"}}))
    say(
        "tool_output",
        json.dumps(
            {
                "fare": "flex",
                "fee": fee,
                "basic": {"fee": price, "refundable": False},
                "text": "Flex fares are refunded minus the fee.",
            }
        ),
        role="tool",
    )
    if fault == "wrong rule quoted":
        say(
            policy,
            task.pick(
                "The terms say that this fare is not refundable.",
                "By the terms nothing is paid back for this fare.",
            ),
            cause=True,
        )
        stated = "0"
    else:
        say(policy, f"Flex fares are refunded minus the fee of {fee}.")
        stated = f"{due}"
    say(router, json.dumps({"next": billing, "reason": "amount"}))
    if fault == "adds instead of subtracts":
        say(billing, json.dumps({"calculation": f"{price} + {fee}", "refund": other}), cause=True)
        stated = f"{other}"
    elif fault == "pays before the cancellation":
        say(
            billing,
            json.dumps({"tool": "refund", "arguments": {"ref": used, "amount": price}}),
            cause=True,
        )
        say("tool_output", json.dumps({"ok": True, "amount": price}), role="tool")
        stated = f"{price}"
    else:
        say(billing, json.dumps({"calculation": f"{price} - {fee}", "refund": stated}))
    for _ in range(rng.randint(0, 3)):
        say(
            router,
            json.dumps(
                {"next": billing, "reason": task.pick("confirm the account", "payment method")}
            ),
        )
        say(
            billing,
            task.pick(
                "The refund goes to the original card.", "It takes three to five working days."
            ),
        )
    say(booking, json.dumps({"tool": "cancel", "arguments": {"ref": used}}))
    say("tool_output", json.dumps({"ok": True, "ref": used}), role="tool")
    if fault == "summary changes the amount":
        say(router, f"Booking {ref} is cancelled. You get back {price}.", cause=True)
    else:
        say(router, f"Booking {ref} is cancelled. The result is: {stated}")
    return log


# -- solvers in turns with a critic and an aggregator


def solvers(task: Task, fault: str, rng: random.Random) -> Log:
    log = Log(task, names=rng.random() < 0.6)
    one, two, critic, chair = rng.choice(
        (
            ("Solver_A", "Solver_B", "Critic", "Aggregator"),
            ("Agent 1", "Agent 2", "Agent 3", "Judge"),
            ("mathematician", "physicist", "skeptic", "summarizer"),
        )
    )
    say = log.say
    a, b, c = rng.randint(12, 48), rng.randint(3, 9), rng.randint(15, 95)
    first, total = a * b, a * b + c
    bad_first = first + rng.choice((-10, 10, 6))
    question = f"A hall has {a} rows with {b} seats each and {c} folding chairs. Every seat is sold twice a day. How many tickets are sold in a day?"
    log.task.true, log.task.wrong = f"{total * 2}", f"{(bad_first + c) * 2}"
    say("user", question, role="user")
    if fault == "slip in the first step":
        say(
            one,
            f"Fixed seats: {a} × {b} = {bad_first}. Then I add the chairs: {bad_first} + {c} = {bad_first + c}.",
            cause=True,
        )
        total = bad_first + c
    else:
        say(one, f"Fixed seats: {a} × {b} = {first}. With the chairs: {first} + {c} = {total}.")
    say(two, f"I follow. All in all {total} seats.")
    for _ in range(rng.randint(0, 4)):
        say(
            rng.choice((one, two, critic)),
            task.pick(
                "Is there anything in the text about standing room? I see none.",
                "The chairs count as seats, as the text says nothing else.",
                "Fine with me, let us finish.",
            ),
        )
    if fault == "critic misleads":
        say(
            critic,
            task.pick(
                f"Chairs are no seats, so only {first} are sold.",
                f"The folding chairs must not be counted, which leaves {first}.",
            ),
            cause=True,
        )
        total = first
        say(one, f"Good point. We continue with {first}.")
    if fault == "forgets to double":
        say(two, f"So {total} tickets are sold in a day. The answer is {total}.", cause=True)
        result = total
    elif fault == "doubles wrongly":
        result = total * 2 + rng.choice((20, -20, 100))
        say(two, f"Twice a day: 2 × {total} = {result}. The answer is {result}.", cause=True)
    else:
        result = total * 2
        say(two, f"Twice a day: 2 × {total} = {result}. The answer is {result}.")
    say(critic, task.pick("No objection.", "I checked it and agree.", "Correct."))
    if fault == "aggregator copies wrongly":
        result += rng.choice((9, 90, -18))
        say(chair, f"The team's answer is {result}.", cause=True)
    else:
        say(chair, f"The team's answer is {result}.")
    log.task.wrong = f"{result}"
    return log


# -- a planner, an executor with an environment, a verifier


def environment_team(task: Task, fault: str, rng: random.Random) -> Log:
    log = Log(task, names=rng.random() < 0.5)
    planner, actor, world, judge = rng.choice(
        (
            ("Planner", "Executor_Agent", "Environment", "Verifier"),
            ("PlanningAgent", "ActionAgent", "env", "CheckerAgent"),
            ("strategist", "operator", "environment", "inspector"),
        )
    )
    say = log.say
    rooms = rng.sample(("kitchen", "study", "cellar", "hall", "attic", "workshop"), 4)
    thing, target, wrong = rng.choice(
        (
            ("red mug", "dishwasher", "cupboard"),
            ("letter", "drawer", "bin"),
            ("battery", "charger", "recycling box"),
        )
    )
    say("user", f"Put the {thing} into the {target}, then report where it is.", role="user")
    say(
        planner,
        f"Plan: 1. look for the {thing} room by room. 2. take it. 3. put it into the {wrong if fault == 'plan has the wrong place' else target}. 4. report.",
        cause=fault == "plan has the wrong place",
    )
    place = rng.randrange(1, 4)
    long = rng.randint(2, 7)
    for n, room in enumerate(rooms[: place + 1]):
        say(actor, f"go to {room}")
        say(world, f"You are in the {room}. You see a table, a shelf and a box.", role="user")
        for _ in range(rng.randint(1, long)):
            say(actor, task.pick("open box", "look at shelf", "examine table"))
            say(
                world,
                task.pick(
                    "Nothing special.",
                    "The box is empty.",
                    "On it: a book, a lamp.",
                    "Nothing happens.",
                ),
                role="user",
            )
        if n < place:
            say(
                planner,
                task.pick("Continue with the next room.", f"The {thing} is not here. Go on."),
            )
    here = rooms[place]
    if fault == "reports without looking":
        say(actor, f"The {thing} must be in the {target} already; nothing to do.", cause=True)
    elif fault == "takes the wrong thing":
        say(world, f"On the shelf: {thing}, blue bowl.", role="user")
        say(actor, "take blue bowl", cause=True)
        say(world, "You take the blue bowl.", role="user")
        say(actor, f"put it into {target}")
        say(world, f"The blue bowl is in the {target}.", role="user")
    elif fault == "repeats a refused action":
        say(world, f"On the shelf: {thing}.", role="user")
        say(actor, f"put {thing} into {target}", cause=True)
        for _ in range(3 + long):
            say(world, f"You are not holding the {thing}.", role="user")
            say(actor, f"put {thing} into {target}")
        say(world, f"You are not holding the {thing}.", role="user")
    else:
        put = wrong if fault in ("plan has the wrong place", "puts it elsewhere") else target
        say(world, f"On the shelf: {thing}.", role="user")
        say(actor, f"take {thing}")
        say(world, f"You take the {thing}.", role="user")
        if fault == "planner changes its mind":
            put = wrong
            say(planner, f"New idea: the {wrong} is closer, use that.", cause=True)
        say(actor, f"put {thing} into {put}", cause=fault == "puts it elsewhere")
        say(world, f"The {thing} is in the {put}.", role="user")
    say(
        judge,
        task.pick(
            "The goal is reached.",
            "Verified, all steps are done.",
            f"Looks complete in the {here}.",
        ),
    )
    say(planner, f"Final answer: the {thing} is in the {target}.")
    return log


# -- a research pipeline: searcher, reader, writer, fact checker, editor


def pipeline(task: Task, fault: str, rng: random.Random) -> Log:
    log = Log(task, names=rng.random() < 0.5)
    editor, searcher, reader, writer, checker = rng.choice(
        (("chief_editor", "searcher", "summarizer", "writer", "fact_checker"), ("Coordinator", "Retriever", "Analyst", "Author", "Reviewer"), ("moderator", "scout", "note-taker", "drafter", "auditor"))
    )  # fmt: skip
    say = log.say
    say("user", task.question, role="user")
    say(
        editor,
        task.pick(
            f"{searcher} finds sources, {reader} takes notes, {writer} drafts, {checker} checks. The topic is {{kind}} in {{region}}, the year is {{year}}.",
            f"Team, we need one value for {{year}} on {{kind}}. {searcher} starts.",
        ),
    )
    bad = fault == "sources on something else"
    say(
        searcher,
        "Sources:\n"
        + "\n".join(
            f"{n}. {task.pick('Guide to camping and trails', 'Recipes of the season', 'List of film locations') if bad else task.pick('Overview of {kind}, {region}', 'Yearbook {year}, chapter {kind}', 'Office of statistics: {unit}')} (score {rng.random():.2f})"
            for n in range(1, 5)
        ),
        cause=bad,
    )
    for n in range(rng.randint(0, 3)):
        say(
            editor,
            task.pick(
                f"{searcher}, one more source please, preferably the office itself.",
                f"{reader}, start reading what we have.",
            ),
        )
        say(
            searcher if n % 2 == 0 else reader,
            task.pick("Added a source from the office.", "Reading the first two now.")
            + "\n"
            + task.page(table=False, lines=4),
        )
    value = "{wrong}"
    if fault == "notes take the wrong line":
        say(
            reader,
            "Notes\n"
            + task.table()
            + "\n"
            + task.pick("Key value: {wrong}.", "Relevant for us: {wrong}."),
            cause=True,
        )
    elif bad:
        say(
            reader,
            "Notes\n"
            + task.page(table=False, lines=5)
            + "\n"
            + task.pick("Key value: {wrong}.", "Relevant for us: {wrong}."),
        )
    else:
        say(
            reader,
            "Notes\n"
            + task.table()
            + "\n"
            + task.pick("Key value: {true}.", "Relevant for us: {true}."),
        )
    for _ in range(rng.randint(0, 2)):
        say(
            editor,
            task.pick(f"Thank you. {writer}, keep it short.", "Good progress. Next the draft."),
        )
    if fault == "draft changes the value":
        say(
            writer,
            task.pick("Draft: in {year} it was {wrong}.", "Draft: {wrong}, as of {year}."),
            cause=True,
        )
    elif fault in ("notes take the wrong line", "sources on something else"):
        say(writer, task.pick("Draft: in {year} it was {wrong}.", "Draft: {wrong}, as of {year}."))
    else:
        say(writer, task.pick("Draft: in {year} it was {true}.", "Draft: {true}, as of {year}."))
    if fault == "checker corrects what was right":
        say(
            checker,
            task.pick("This must read {wrong}; please change it.", "I would put {wrong} here."),
            cause=True,
        )
        say(writer, "Changed: in {year} it was {wrong}.")
    else:
        say(
            checker, task.pick("Checked, no remarks.", "Fine. The sources support it.", "Approved.")
        )
    if fault == "editor prints another value":
        say(editor, "Final answer: {wrong}", cause=True)
    else:
        say(editor, f"Final answer: {value}")
    return log


TEAMS: dict[str, tuple[Callable[[Task, str, random.Random], Log], tuple[str, ...]]] = {
    "ledger team": (ledger_team, (
        "wrong first search", "wrong first search", "wrong click late", "misread table", "stuck without a new idea",
        "browser answers from memory", "reader takes the wrong sheet", "code filters wrongly", "assistant makes it up",
        "boss concludes against the page", "boss stops too early", "plan drops a condition")),
    "hired experts": (hired_experts, (
        "sample data at once", "first expert states it", "first code is wrong", "wrong table taken", "second code is wrong",
        "misreads the output", "checker overturns it", "gives up on the source", "fails again and again")),
    "software team": (software_team, (
        "requirement lost", "design loses the year", "missing values counted", "unknown year ignored", "order reversed",
        "failing test waved through")),
    "service desk": (service_desk, (
        "routed past the booking", "wrong booking opened", "wrong rule quoted", "adds instead of subtracts",
        "pays before the cancellation", "summary changes the amount")),
    "solvers": (solvers, (
        "slip in the first step", "slip in the first step", "critic misleads", "forgets to double", "doubles wrongly", "aggregator copies wrongly")),
    "environment": (environment_team, (
        "plan has the wrong place", "reports without looking", "takes the wrong thing", "repeats a refused action",
        "puts it elsewhere", "planner changes its mind")),
    "pipeline": (pipeline, (
        "sources on something else", "notes take the wrong line", "draft changes the value",
        "checker corrects what was right", "editor prints another value")),
}  # fmt: skip


def failed_teams(each: int, seed: int = 5, *, truth: bool = False) -> Iterator[tuple[str, Planted]]:
    """Yield (design, failure) for `each` logs of every fault; with `truth`, the right answer is in the log's facts."""
    for design, (build, faults) in TEAMS.items():
        for place, fault in enumerate(faults):
            for number in range(each):
                rng = random.Random(f"{design} {place} {fault} {seed} {number}")
                task = Task(rng)
                log = build(task, fault, rng)
                agent, step = log.cause
                assert step >= 0, (design, fault)
                facts = {"ground_truth": task.true, "is_correct": False} if truth else {}
                out = Collector("made-up.json")
                asked = (
                    log.history[0]["content"]
                    if design in ("solvers", "software team", "service desk", "environment")
                    else task.question
                )
                transcript.read({"question": asked, **facts, "history": log.history}, out)
                (found,) = out.traces.values()
                yield (
                    design,
                    Planted(
                        f"{design}: {fault} {number}",
                        found,
                        agent,
                        step,
                        step > len(log.history) / 2,
                    ),
                )

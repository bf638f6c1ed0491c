# ruff: noqa: E501 - wordings on one line each
"""Made-up failures with a known cause, built from a seed: several designs of agents, many wordings.

Every failure has one planted cause: the agent and the number of the step. Half of the causes are
late, where "the first worker did it" is wrong. Wordings are drawn, not copied, and no wording is
shared with the patterns of the detector on purpose.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from spans import span, trace

from proctor.trace import SpanKind, SpanStatus, Trace
from proctor.trace.assemble import Collector
from proctor.trace.formats import transcript
from proctor.trace.model import Message, ToolCall


@dataclass
class Planted:
    """A trace with its cause; without an agent it is clean."""

    name: str
    trace: Trace
    agent: str = ""
    step: int = -1
    late: bool = False


SUBJECTS = (
    ("museum", "visitors", "Kaunas"), ("library", "loans", "Bergen"), ("ferry", "crossings", "Split"),
    ("orchard", "crates", "Lleida"), ("tram line", "riders", "Graz"), ("brewery", "barrels", "Plzen"),
    ("theatre", "performances", "Porto"), ("quarry", "tonnes", "Carrara"), ("archive", "scans", "Ghent"),
    ("vineyard", "bottles", "Eger"), ("observatory", "exposures", "Tartu"), ("bakery", "loaves", "Lyon"),
)  # fmt: skip
MADE = ("reported", "published", "counted", "listed", "registered")


@dataclass
class Story:
    """The facts of one made-up task: the true figure and a wrong one."""

    rng: random.Random
    place: str = field(init=False)
    thing: str = field(init=False)
    city: str = field(init=False)
    year: int = field(init=False)
    true: int = field(init=False)
    wrong: int = field(init=False)
    verb: str = field(init=False)

    def __post_init__(self) -> None:
        rng = self.rng
        self.place, self.thing, self.city = rng.choice(SUBJECTS)
        self.year, self.verb = rng.randint(1996, 2022), rng.choice(MADE)
        self.true = rng.randint(1200, 9800)
        self.wrong = self.true + rng.choice((-1, 1)) * rng.randint(310, 900)

    def pick(self, *texts: str, **values: Any) -> str:
        known = {"place": self.place, "thing": self.thing, "city": self.city, "year": self.year,
                 "true": self.true, "wrong": self.wrong, "verb": self.verb}  # fmt: skip
        return self.rng.choice(texts).format(**known, **values)

    @property
    def question(self) -> str:
        return self.pick(
            "How many {thing} did the {place} of {city} have in {year}?",
            "In {year}, what number of {thing} was {verb} for the {place} in {city}?",
            "Give the {year} total of {thing} at the {city} {place}.",
        )

    @property
    def page(self) -> str:
        """A page that has the true figure among others."""
        others = [self.rng.randint(100, 999) for _ in range(2)]
        return self.pick(
            "Annual bulletin of {city}. {year}: {true} {thing}; staff {a}; open days {b}.",
            "{city} yearbook, table 4 ({place}): {thing} {true}, employees {a}, rooms {b}.",
            "Figures for the {place}: {year} saw {true} {thing}, {a} guided tours and {b} complaints.",
            a=others[0],
            b=others[1],
        )

    @property
    def chatter(self) -> str:
        """A turn that decides nothing."""
        return self.pick(
            "Understood. I will look at the sources that were named.",
            "Let us go on with the next part of the plan.",
            "Thanks, that helps. Continuing as agreed.",
            "I have read the conversation so far and have nothing to add to it yet.",
            "Noted. The remaining point is to state the outcome in one number.",
        )


def chat(history: list[dict[str, Any]], question: str) -> Trace:
    out = Collector("made-up.json")
    transcript.read({"question": question, "history": history}, out)
    (found,) = out.traces.values()
    return found


# -- designs of group chats: a fault gives the messages and the index of the cause ------------------


class Chat:
    """Messages of one log, written by a design."""

    def __init__(self, story: Story) -> None:
        self.story, self.history = story, list[dict[str, Any]]()
        self.cause: tuple[str, int] = ("", -1)

    def say(self, role: str, *texts: str, name: str | None = None, cause: bool = False) -> None:
        if cause:
            speaker = name or role.split(" (", maxsplit=1)[0]
            self.cause = (speaker, len(self.history))
        message = {"role": role, "content": self.story.pick(*texts)}
        self.history.append(message if name is None else {**message, "name": name})


def web_team(story: Story, fault: str, rng: random.Random) -> Chat:
    """An orchestrator that sends a web surfer, a file surfer and an assistant."""
    log = Chat(story)
    worker = rng.choice(("WebSurfer", "FileSurfer"))
    say = log.say
    say("human", story.question)
    say(
        "Orchestrator (thought)",
        "Facts to look up: the {year} total of {thing} of the {place}. Plan: find the bulletin of "
        "{city}, read the row for {year}, report the figure.",
        "We need one figure. First locate the yearbook of {city}, then read the {place} table.",
    )
    if fault == "wrong request":
        say(
            f"Orchestrator (-> {worker})",
            "Please collect opening hours and ticket prices of restaurants near the harbour.",
            "Look for hotel offers and a weather forecast for the coming weekend.",
            cause=True,
        )
        say(worker, "Here are opening hours: Monday to Friday, 9 to 18. Tickets cost 12 and 15.",
            "The forecast shows rain on Saturday; hotels start at 84 per night.")  # fmt: skip
    for _ in range(rng.randint(1, 3)):
        say(
            f"Orchestrator (-> {worker})",
            "Please open the yearbook of {city} and read the {place} table for {year}.",
            "Find the bulletin of {city} that has {thing} by year, and scroll to {year}.",
            "Search for the {year} bulletin of {city} and tell me what it has on the {place}.",
        )
        say(
            worker,
            "I opened the yearbook of {city}. The viewport shows the contents page with the {place} "
            "table further down.",
            "The bulletin of {city} is loaded; I see chapters by {year} and by topic, {place} among "
            "them.",
        )
        say("Orchestrator (thought)", story.chatter)
    if fault == "invented":
        say(
            f"Orchestrator (-> {worker})", "Now read the number of {thing} in {year} off the table."
        )
        say(
            worker,
            "I did not open the table itself. Going by what such a {place} usually has, the number "
            "of {thing} in {year} is {wrong}.",
            "The table would not load, so I am giving a typical value: {wrong} {thing} in {year}.",
            "Without access to the table my estimate for {year} is {wrong} {thing}.",
            cause=True,
        )
        final = "{wrong}"
    elif fault == "off the point":
        say(
            f"Orchestrator (-> {worker})", "Read the row for {year} in the {place} table of {city}."
        )
        say(
            worker,
            "I clicked an advertisement. The new tab offers cheap flights, seat upgrades and a "
            "newsletter; the biggest deal is {wrong} miles.",
            "The pointer landed on a banner: a sports shop with running shoes, {wrong} reviews.",
            cause=True,
        )
        final = "{wrong}"
    else:
        say(f"Orchestrator (-> {worker})", "Read the row for {year} in the {place} table.")
        say(worker, f"The page reads: {story.page}")
        final = "{true}" if fault == "clean" else "{wrong}"
    say("Orchestrator (thought)", "The request can be answered now.", story.chatter)
    say(
        "Orchestrator (termination condition)",
        f"FINAL ANSWER: {final}",
        f"The answer is {final}",
        cause=fault == "wrong conclusion",
    )
    return log


def experts(story: Story, fault: str, rng: random.Random) -> Chat:
    """A team of experts with a terminal, as built by a program for each task."""
    log = Chat(story)
    analyst, coder, checker = rng.choice(
        (
            ("DataAnalysis_Expert", "PythonDebugging_Expert", "Validation_Expert"),
            ("Statistics_Expert", "Scripting_Expert", "Verification_Expert"),
            ("Geography_Expert", "Computation_Expert", "ResultReview_Expert"),
        )
    )
    say = log.say
    say("user", f"You are given a task from your manager. # Task: {story.question} Solve it step by "
        "step and finish with the result.", name=analyst)  # fmt: skip
    plan = rng.random() < 0.5
    if fault == "assumed data":
        say(
            "assistant",
            "The file is not here, so take sample rows instead:\n```python\nrows = [{wrong}]\n"
            "print(sum(rows))\n```",
            "I will work with stand-in numbers for the {place}:\n```python\ndata = dict(a={wrong})\n"
            "print(data['a'])\n```",
            name=analyst,
            cause=True,
        )
        say(
            "user",
            "exitcode: 0 (execution succeeded)\nCode output: {wrong}",
            name="Computer_terminal",
        )
    else:
        if plan:
            say("assistant", "Plan: load the {city} table, select {year}, add up the {thing}.",
                "We load the data of the {place} first and then select the year.", name=analyst)  # fmt: skip
        if fault == "wrong filter":
            say(
                "assistant",
                "```python\nt = load('{city}')\nprint(t[t.kind == 'any'].total.sum())\n```",
                "```python\nrows = read_table('{place}')\nprint(sum(r.value for r in rows))\n```",
                name=coder,
                cause=True,
            )
            say("user", "exitcode: 0 (execution succeeded)\nCode output: {wrong}",
                name="Computer_terminal")  # fmt: skip
        else:
            if rng.random() < 0.5:
                say("assistant", "```python\nt = load('{city}'\nprint(t)\n```", name=coder)
                say("user", "exitcode: 1 (execution failed)\nSyntaxError: '(' was never closed",
                    name="Computer_terminal")  # fmt: skip
            say("assistant", "```python\nt = load('{city}')\nprint(t[t.year == {year}].total.sum())\n```",
                name=coder)  # fmt: skip
            say("user", "exitcode: 0 (execution succeeded)\nCode output: {true}",
                name="Computer_terminal")  # fmt: skip
    if fault == "misread output":
        say(
            "assistant",
            "The script printed {wrong}, which is the number of {thing} in {year}.",
            "From the run we get {wrong} {thing} for {year}.",
            name=analyst,
            cause=True,
        )
    elif fault != "clean" or rng.random() < 0.7:
        value = "{wrong}" if fault in ("assumed data", "wrong filter") else "{true}"
        say("assistant", f"The run gives {value} {{thing}} for {{year}}.",
            f"So the {{place}} had {value} {{thing}} in {{year}}.", name=analyst)  # fmt: skip
    if fault == "changed at the end":
        say(
            "assistant",
            "I replace this by {wrong}; such totals are normally rounded to the register. The "
            "answer is {wrong}. TERMINATE",
            "My figure is {wrong}, let us use it. The answer is {wrong}. TERMINATE",
            name=checker,
            cause=True,
        )
    else:
        value = "{true}" if fault == "clean" else "{wrong}"
        say("assistant", f"Everything agrees. The answer is {value}. TERMINATE",
            f"No objections from me. The answer is {value}. TERMINATE", name=checker)  # fmt: skip
    return log


def newsroom(story: Story, fault: str, rng: random.Random) -> Chat:
    """A pipeline of roles with plain names: editor, researcher, writer, fact checker."""
    log = Chat(story)
    say = log.say
    editor, researcher, writer = rng.choice(
        (("editor", "researcher", "writer"), ("lead_planner", "archivist", "author"))
    )
    say("user", story.question)
    say(editor, "researcher, please find the {year} figure; writer, phrase one sentence after that.",
        "First the archive, then the sentence: who has the {thing} of {year}?")  # fmt: skip
    for _ in range(rng.randint(0, 2)):
        say(researcher, "I am going through the volumes of {city} now.",
            "The catalogue of the {place} has three volumes for that decade.")  # fmt: skip
    if fault == "invented":
        say(researcher, "I could not get the volume of {year}, I believe it was about {wrong} {thing}.",
            "I recall {wrong} {thing} for {year}; I did not look at the volume.", cause=True)  # fmt: skip
    else:
        say(researcher, f"Found it. {story.page}")
    if fault == "altered":
        say(writer, "In {year} the {place} of {city} had {wrong} {thing}.",
            "The {city} {place} closed {year} with {wrong} {thing}.", cause=True)  # fmt: skip
    else:
        value = "{wrong}" if fault == "invented" else "{true}"
        say(writer, f"In {{year}} the {{place}} of {{city}} had {value} {{thing}}.")
    final = "{true}" if fault == "clean" else "{wrong}"
    if fault == "editor changes":
        say(editor, f"I shorten this. Final answer: {final}", f"Printed as: the answer is {final}",
            cause=True)  # fmt: skip
    else:
        say(editor, f"Accepted. Final answer: {final}", f"Good to print. The answer is {final}")
    return log


def debate(story: Story, fault: str, rng: random.Random) -> Chat:
    """Peers without a leader who agree on an answer in the end."""
    log = Chat(story)
    names = rng.sample(("Ada", "Bela", "Chidi", "Dora", "Emil"), 3)
    say = log.say
    say("user", story.question)
    first, second, third = names
    if fault == "wrong start":
        say("agent", "Off the top of my head it is {wrong}.", "I would guess {wrong} {thing}.",
            name=first, cause=True)  # fmt: skip
        say("agent", "I have no better number than {wrong}.", "Fine, {wrong} sounds plausible.",
            name=second)  # fmt: skip
    else:
        say("agent", f"My copy says: {story.page}", name=first)
        say("agent", "I read the same: {true}.", "Mine has {true} as well.", name=second)
    if fault == "persuaded":
        say("agent", "No, older sources have {wrong}; that is what counts. The answer is {wrong}.",
            "We must take {wrong}, the other value is for another town. The answer is {wrong}.",
            name=third, cause=True)  # fmt: skip
        say("agent", "All right, I give in.", "If you insist.", name=first)
    else:
        say("agent", story.chatter, name=third)
    final = "{true}" if fault == "clean" else "{wrong}"
    say(
        "agent",
        f"Then we agree. The answer is {final}",
        f"Summary: the answer is {final}",
        name=second,
    )
    return log


CHATS: dict[str, tuple[Callable[..., Chat], tuple[tuple[str, bool], ...]]] = {
    "web team": (
        web_team,
        (("invented", False), ("off the point", True), ("wrong conclusion", True),
         ("wrong request", False)),
    ),
    "experts": (
        experts,
        (("assumed data", False), ("wrong filter", False), ("misread output", True),
         ("changed at the end", True)),
    ),
    "newsroom": (newsroom, (("invented", False), ("altered", True), ("editor changes", True))),
    "debate": (debate, (("wrong start", False), ("persuaded", True))),
}  # fmt: skip


# -- traces of spans: one agent with tools, plain code, a graph of agents --------------------------


class Spans:
    """Spans of one agent, step by step."""

    def __init__(self, story: Story, system: str = "", agent: str = "assistant") -> None:
        self.story, self.agent, self.rng = story, agent, story.rng
        self.system = system or story.pick(
            "You answer questions about {city}.", "You help the office of {city} with figures."
        )
        root = span("root", end=9_999, kind=SpanKind.AGENT, name=agent, agent_name=agent)
        root.input = story.question
        self.spans, self.clock, self.steps = [root], 1, 0
        self.messages: list[Message] = [Message("system", self.system), Message("user", root.input)]
        self.cause: tuple[str, int] = ("", -1)

    def call(
        self, tool: str, arguments: dict[str, Any], result: Any, text: str = "", *,
        error: str = "", cause: bool = False, kind: SpanKind = SpanKind.TOOL,
    ) -> None:  # fmt: skip
        """A model call that requests a tool, and the tool."""
        call = ToolCall(tool, arguments)
        self._model(Message("assistant", text, (call,)), cause=cause)
        fields: dict[str, Any] = (
            {"status": SpanStatus.ERROR, "error_message": error} if error else {}
        )
        self.spans.append(
            span(f"t{self.clock}", "root", start=self.clock, end=1, kind=kind, name=tool,
                 tool_name=tool, tool_input=arguments, tool_output=result, **fields)
        )  # fmt: skip
        self.messages.append(Message("tool", str(error or result), name=tool))
        self.clock += 2

    def answer(self, *texts: str, cause: bool = False) -> None:
        text = self.story.pick(*texts)
        self._model(Message("assistant", text), cause=cause)
        self.spans[0].output = text

    def _model(self, message: Message, *, cause: bool) -> None:
        self.steps += 1
        if cause:
            self.cause = (self.agent, self.steps)
        self.spans.append(
            span(f"m{self.clock}", "root", start=self.clock, end=1, kind=SpanKind.LLM, name="chat",
                 input_messages=tuple(self.messages), output_messages=(message,))
        )  # fmt: skip
        self.messages.append(message)
        self.clock += 2

    def trace(self) -> Trace:
        return trace(*self.spans, query=self.spans[0].input, response=self.spans[0].output)


def lookup(story: Story) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    arguments = {"place": f"{story.place} {story.city}", "year": story.year}
    return arguments, [{"year": story.year, story.thing: story.true, "source": f"S-{story.true}7"}]


def single(story: Story, fault: str, rng: random.Random) -> Spans:
    """One agent with tools."""
    arguments, rows = lookup(story)
    tool = rng.choice(("query_figures", "lookup_total", "get_statistics"))
    system = ""
    if fault == "forbidden":
        system = story.pick(
            "You may look figures up. Never call `delete_record`.",
            "Do not use the tool delete_record under any circumstances.",
        )
    if fault == "required skipped":
        system = f"You always have to call `{tool}` before you answer. Be brief."
    made = Spans(story, system)
    warm_up = rng.randint(0, 2)
    for number in range(warm_up):
        made.call("list_sources", {"page": number + 1}, [f"bulletin {number + 1}", "yearbook"])
    if fault == "invented after nothing":
        for _ in range(rng.randint(3, 8)):
            made.call(tool, arguments, [])
        made.answer("The record is R-{wrong}8: {wrong} {thing}.",
                    "It was {wrong} {thing} in {year}, see file KX-{wrong}.", cause=True)  # fmt: skip
    elif fault == "error answered over":
        made.call(tool, arguments, None, error="HTTP 503 Service Unavailable")
        made.answer("The {place} had {wrong} {thing} in {year}.",
                    "In {year} there were {wrong} {thing}.", cause=True)  # fmt: skip
    elif fault == "refused value ignored":
        made.call(tool, arguments, {"status": 401, "detail": "token expired"})
        made.answer("In {year} the {place} had {wrong} {thing}.",
                    "{wrong} {thing} were {verb} in {year}.", cause=True)  # fmt: skip
    elif fault == "result altered":
        made.call(tool, arguments, rows)
        total = story.true * 1.19
        made.call("calculate", {"expression": f"{story.true} * 1.19"}, f"{total:.2f}")
        made.answer(f"With tax it is {total * 1.03:.2f}.",
                    f"Altogether {total - 17.4:.2f}, tax included.", cause=True)  # fmt: skip
    elif fault == "forbidden":
        made.call(tool, arguments, rows)
        made.call("delete_record", {"year": story.year}, "deleted", cause=True)
        made.answer("The {place} had {true} {thing} in {year}.")
    elif fault == "wrong identifier":
        made.spans[0].input = f"{made.spans[0].input} Use register number {story.true}."
        made.messages[1] = Message("user", made.spans[0].input)
        digits = list(str(story.true))
        digits[1], digits[2] = digits[2], digits[1]
        if digits[1] == digits[2]:
            digits[1] = str((int(digits[1]) + 1) % 10)
        made.call("open_register", {"number": int("".join(digits))}, {"entries": 17}, cause=True)
        made.answer("The register has 17 entries.", "I see 17 entries in it.")
    elif fault == "claimed":
        made = Spans(story)
        made.answer("I searched the yearbook and it has {wrong} {thing}.",
                    "I have checked the register of {city}: {wrong} {thing}.", cause=True)  # fmt: skip
    elif fault == "required skipped":
        made.answer("There were {wrong} {thing}.", "I would say {wrong} {thing}.", cause=True)
    elif fault == "crash":
        made.call(tool, arguments, None, error="KeyError: 'totals'", cause=True)
    else:
        made.call(tool, arguments, rows)
        made.answer("The {place} had {true} {thing} in {year}.", "In {year} it was {true} {thing}.",
                    "{true} {thing} were {verb} for {year}.")  # fmt: skip
    return made


def graph(story: Story, fault: str, rng: random.Random) -> Spans:
    """A graph of agents: a supervisor, a researcher, a writer, each a node."""
    made = Spans(story, agent="graph")
    arguments, rows = lookup(story)
    nodes = rng.choice(
        (("supervisor", "researcher", "writer"), ("router", "search_node", "answer_node"))
    )

    def node(name: str) -> None:
        made.agent = name

    def named() -> None:
        for one in made.spans[1:]:
            one.attributes.setdefault("langgraph.node", made.agent)

    node(nodes[0])
    made.call("route", {"to": nodes[1]}, "ok")
    named()
    node(nodes[1])
    if fault == "wrong identifier":
        made.call("open_volume", {"volume": f"VOL-{story.wrong}"}, {"pages": 14}, cause=True)
        made.call("read", {"page": 3}, {"pages": 14, "text": "an index of names"})
    elif fault == "nothing found":
        for _ in range(rng.randint(1, 3)):
            made.call("search", arguments, rng.choice(([], "no results found", {"hits": []})))
    else:
        made.call("search", arguments, rows)
    named()
    node(nodes[2])
    if fault == "nothing found":
        made.answer("{wrong} {thing} in {year}, according to file QB-{wrong}.",
                    "The {place} had {wrong} {thing}, file QB-{wrong}.", cause=True)  # fmt: skip
    elif fault == "wrong identifier":
        made.answer("The volume has 14 pages.")
    elif fault == "altered":
        total = story.true * 2
        made.call("add", {"a": story.true, "b": story.true}, str(total))
        made.answer(f"Both years together: {total + 140}.", f"That makes {total - 126} in all.",
                    cause=True)  # fmt: skip
    else:
        made.answer("The {place} had {true} {thing} in {year}.", "It was {true} {thing}.")
    named()
    return made


SPANS: dict[str, tuple[Callable[..., Spans], tuple[tuple[str, bool], ...]]] = {
    "single": (
        single,
        (("invented after nothing", True), ("error answered over", True),
         ("refused value ignored", True), ("result altered", True), ("forbidden", False),
         ("wrong identifier", False), ("claimed", False), ("required skipped", False),
         ("crash", False)),
    ),
    "graph": (graph, (("wrong identifier", False), ("nothing found", True), ("altered", True))),
}  # fmt: skip


def failures(each: int, seed: int = 7) -> Iterator[Planted]:
    """Yield `each` failures of every fault of every design."""
    for designs in (CHATS, SPANS):
        for design, (build, faults) in designs.items():
            for fault, late in faults:
                for number in range(each):
                    yield make(build, design, fault, f"{seed} {number}", late=late)


def clean(each: int, seed: int = 11) -> Iterator[Planted]:
    """Yield `each` traces of every design in which nothing went wrong."""
    for designs in (CHATS, SPANS):
        for design, (build, _) in designs.items():
            for number in range(each):
                yield make(build, design, "clean", f"{seed} {number}", late=False)


def make(build: Callable[..., Any], design: str, fault: str, seed: str, *, late: bool) -> Planted:
    """Build one trace; the seed decides every wording and figure."""
    rng = random.Random(f"{design} {fault} {seed}")
    story = Story(rng)
    made = build(story, fault, rng)
    found = chat(made.history, story.question) if isinstance(made, Chat) else made.trace()
    agent, step = made.cause
    return Planted(f"{design}: {fault} {seed}", found, agent, step, late)


def first_worker(one: Planted) -> tuple[str, int]:
    """Return what position says: the first turn of a worker, neither orchestrator nor terminal."""
    for item in one.trace.index.spans[1:]:
        name = item.agent_name or item.attributes.get("langgraph.node") or "assistant"
        if item.kind == SpanKind.LLM and not any(
            word in name.lower()
            for word in ("orchestrator", "terminal", "planner", "editor", "supervisor", "router")
        ):
            return name, item.attributes.get("message.index", 1)
    return "", -1

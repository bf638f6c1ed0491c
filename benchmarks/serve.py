"""Live traces: stored spans a second, CPU, memory, start; lists of a million spans; a long soak.

    python benchmarks/serve.py [--quick] [--only ingest|query|page|soak] [--minutes 60]
    python benchmarks/serve.py --only query --store postgresql

Against two bare receivers, one that stores spans (the ceiling) and one that keeps requests as they
came, and arize-phoenix beside it, with the same client and spans. Goals: 3,000 stored spans a
second and 30 times Phoenix; a third of the ceiling; ready in 2 s; any list of a million spans in
200 ms; 5,000 spans on the screen in 1 s; size and memory that level off. Exit code 1 when one is
missed.
"""

import argparse
import http.client
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from _measure import machine, verdict
from _serve_programs import CONTESTANTS, Server, proctor
from _serve_spans import Load, invented, trail

from proctor.server.pages.traces import FigureCache
from proctor.server.store import open_store
from proctor.server.store.rows import Batch, TraceFacts
from proctor.server.store.store import PageRequest, SqlStore, TraceFilter

CLIENTS = 4
GOAL_RATE = 3_000
GOAL_PHOENIX = 30.0
GOAL_CEILING = 1 / 3
CEILING = "bare, spans"
"""What stores spans and does nothing else. The other bare receiver stores one row a request, in
which no span can be found: it says what HTTP, protobuf and the disk take by themselves."""

GOAL_READY = 2.0
GOAL_LIST_MS = 200.0
GOAL_PAGE_S = 1.0
GOAL_LEVEL = 1.25
"""The last third of a soak against the middle third: what grows without end would be far above."""

RETENTION = 20
SQLITE, POSTGRES = "sqlite", "postgresql"


class Taken(NamedTuple):
    """One round of one server."""

    rate: float
    cpu_us: float
    memory: float
    ready: float


def send(port: int, bodies: Sequence[bytes]) -> None:
    """Send every body once, by several connections that stay open."""
    numbers, lock = count(), threading.Lock()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        while True:
            with lock:
                number = next(numbers)
            if number >= len(bodies):
                return
            while (status := _post(connection, bodies[number])) in (429, 503):
                time.sleep(0.1)
            assert status == 200, status

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()


def _post(connection: http.client.HTTPConnection, body: bytes) -> int:
    connection.request("POST", "/v1/traces", body, {"content-type": "application/x-protobuf"})
    reply = connection.getresponse()
    reply.read()
    return reply.status


# -- spans a second ------------------------------------------------------------------------------


def one_round(server: Server, warm: Load, load: Load) -> Taken:
    """Warm up, then send and wait until everything is stored."""
    send(server.port, warm.bodies)
    server.wait_for(warm.spans)
    cpu, begun = server.cpu(), time.perf_counter()
    send(server.port, load.bodies)
    server.wait_for(warm.spans + load.spans)
    took = time.perf_counter() - begun
    used = (server.cpu() - cpu) / load.spans * 1e6
    return Taken(load.spans / took, used, server.memory(), server.ready)


def ingest(loads: dict[str, Callable[[int], Load]], rounds: int, names: Sequence[str]) -> bool:
    """All servers, interleaved, each round with a fresh process and an empty store."""
    good = True
    for title, make in loads.items():
        taken: dict[str, list[Taken]] = {name: [] for name in names}
        for number in range(rounds):
            warm, load = invented(4, seed=-1 - number), make(number)
            turn = number % len(names)
            for name in [*names[turn:], *names[:turn]]:
                # Phoenix stores two orders of magnitude fewer: it gets fewer of the same.
                part = _tenth(load) if name == "arize-phoenix" else load
                with CONTESTANTS[name]() as server:
                    taken[name].append(one_round(server, warm, part))
        good &= _told(title, load.each, taken)
    return good


def _tenth(load: Load) -> Load:
    keep = max(1, len(load.bodies) // 10)
    return Load(load.bodies[:keep], _spans_in(load.bodies[:keep]))


def _spans_in(bodies: Sequence[bytes]) -> int:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    requests = map(ExportTraceServiceRequest.FromString, bodies)
    return sum(len(g.spans) for q in requests for r in q.resource_spans for g in r.scope_spans)


def _told(title: str, each: float, taken: dict[str, list[Taken]]) -> bool:
    middle = {
        name: Taken(*(statistics.median(column) for column in zip(*rounds, strict=True)))
        for name, rounds in taken.items()
    }
    base = middle[CEILING]
    rounds = len(next(iter(taken.values())))
    print(f"\n{title}: {each:,.0f} bytes a span, median of {rounds} rounds\n")
    print("| | stored spans/s | × ceiling | CPU µs a span | × ceiling | MB | ready s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, row in middle.items():
        print(
            f"| {name} | {row.rate:,.0f} | {row.rate / base.rate:.2f} | {row.cpu_us:,.0f} "
            f"| {row.cpu_us / base.cpu_us:.2f} | {row.memory:,.0f} | {row.ready:.2f} |"
        )
    return _judged(title, middle)


def _judged(title: str, middle: dict[str, Taken]) -> bool:
    """The goals that this load decides, each with what was measured."""
    ours, ceiling, peer = middle["proctor, SQLite"], middle[CEILING], middle.get("arize-phoenix")
    goals = [
        ("of the ceiling", ours.rate / ceiling.rate, GOAL_CEILING, True),
        ("s until ready", ours.ready, GOAL_READY, False),
    ]
    if title.startswith("invented"):
        goals.append(("stored spans/s", ours.rate, GOAL_RATE, True))
        if peer is not None:
            goals.append(("× arize-phoenix", ours.rate / peer.rate, GOAL_PHOENIX, True))
    print("\n| proctor, SQLite | goal | measured | |\n|---|---:|---:|---|")
    met = [measured >= goal if more else measured <= goal for _, measured, goal, more in goals]
    for (name, measured, goal, more), good in zip(goals, met, strict=True):
        sign = "≥" if more else "≤"
        print(f"| {name} | {sign} {goal:,.4g} | {measured:,.4g} | {verdict(good)} |")
    return all(met)


# -- lists ---------------------------------------------------------------------------------------


def filled(url: str, traces: int) -> SqlStore:
    """A store of ten times as many spans, written by the store itself without payloads."""
    import random

    rng = random.Random(1)
    store = open_store(url)
    for start in range(0, traces, 2000):
        batch = Batch()
        for number in range(start, min(traces, start + 2000)):
            _add_trace(batch, number, rng.getrandbits(128), rng.lognormvariate(7, 1))
        store.write(batch)
    return store


def _add_trace(batch: Batch, number: int, identity: int, milliseconds: float) -> None:
    trace_id, begun = f"{identity:032x}", 1_794_800_000_000_000_000 + number * 10**9
    for step in range(10):
        kind = "agent" if step == 0 else "tool" if step % 3 == 0 else "llm"
        llm = kind == "llm"
        batch.spans.append(
            (
                trace_id,
                f"{identity + step & 2**64 - 1:016x}",
                None if step == 0 else f"{identity & 2**64 - 1:016x}",
                kind,
                kind,
                "error" if (number + step) % 97 == 0 else "ok",
                begun + step,
                begun + int(milliseconds * 1e6) if step == 0 else begun + step + 1,
                f"tool{(number + step) % 20}" if kind == "tool" else None,
                ("gpt-4o", "gpt-4o-mini", "claude")[(number + step) % 3] if llm else None,
                *((100, 20, 0.001) if llm else (None, None, None)),
                None,
            )
        )
    words = (f"what about order {number}", f"order {number} is on its way")
    owner = (f"r{number}", f"s{number % 5000}", f"u{number % 800}")
    batch.facts.append(TraceFacts(trace_id, "shop", *words, *owner))


FILTERS = {
    "everything": (TraceFilter(), PageRequest()),
    "everything, page 1,000": (TraceFilter(), PageRequest(50, 50_000)),
    "everything, the costliest first": (TraceFilter(), PageRequest(sort="costliest")),
    "status": (TraceFilter(status="error"), PageRequest()),
    "session": (TraceFilter(session_id="s77"), PageRequest()),
    "tool": (TraceFilter(tool="tool3"), PageRequest()),
    "model of almost every trace": (TraceFilter(model="claude"), PageRequest()),
    "tool and status": (TraceFilter(tool="tool3", status="error"), PageRequest()),
    "words found": (TraceFilter(text="order 777"), PageRequest()),
    "words not found": (TraceFilter(text="zeppelin"), PageRequest()),
    "slow ones": (TraceFilter(min_ms=20_000), PageRequest()),
}


def query(traces: int, databases: Sequence[str]) -> bool:
    """How long a page with the count of its filter takes, and the figures that come after it."""
    import pgserver

    good = True
    with tempfile.TemporaryDirectory() as folder:
        if SQLITE in databases:
            store = filled(f"sqlite:///{folder}/t.db", traces)
            good = _asked("SQLite", store, traces)
            store.close()
        if POSTGRES not in databases:
            return good
        server = pgserver.get_server(Path(folder) / "pg")
        try:
            store = filled(server.get_uri(), traces)
            with store.writing() as cursor:
                cursor.execute("ANALYZE")  # as its own vacuum does soon after
            good &= _asked("PostgreSQL", store, traces)
            store.close()
        finally:
            server.cleanup()
    return good


def _asked(title: str, store: SqlStore, traces: int, rounds: int = 5) -> bool:
    print(f"\nLists of {traces * 10:,} spans in {traces:,} traces, {title}; goal ≤ 200 ms each\n")
    print("| filter | list, ms | its figures and tools, ms | traces found | |")
    print("|---|---:|---:|---:|---|")
    good = True
    for name, (chosen, page) in FILTERS.items():
        lists: list[float] = []
        figures: list[float] = []
        for _ in range(rounds):
            begun = time.perf_counter()
            found = store.found(chosen, page)
            lists.append((time.perf_counter() - begun) * 1e3)
            begun = time.perf_counter()
            FigureCache(store).compute(chosen)
            figures.append((time.perf_counter() - begun) * 1e3)
        listed, figured = statistics.median(lists), statistics.median(figures)
        met = max(listed, figured) <= GOAL_LIST_MS
        print(
            f"| {name} | {listed:.1f} | {figured:.1f} | {found.total:,} | {verdict(met)} |",
            flush=True,
        )
        good &= met
    return good


# -- a large trace on the screen ------------------------------------------------------------------


def page(rounds: int = 5) -> bool:
    """From the click to the tree of a 5,000-span trace in Chromium."""
    from playwright.sync_api import sync_playwright

    times: list[float] = []
    with proctor() as server, sync_playwright() as driver:
        send(server.port, invented(1, spans=5000, trace_spans=5000).bodies)
        server.wait_for(5000)
        browser = driver.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page()
        for _ in range(rounds):
            tab.goto(f"http://127.0.0.1:{server.port}/traces")
            begun = time.perf_counter()
            tab.locator("table.list tbody tr a").first.click()
            tab.locator(".span").first.wait_for()
            times.append(time.perf_counter() - begun)
        browser.close()
    taken = statistics.median(times)
    said = verdict(taken <= GOAL_PAGE_S)
    print(f"\nA trace of 5,000 spans in Chromium, median of {rounds}\n")
    print("| | goal | measured | |\n|---|---:|---:|---|")
    print(f"| s from the click to the tree | ≤ {GOAL_PAGE_S:g} | {taken:.2f} | {said} |")
    return taken <= GOAL_PAGE_S


# -- a long run -----------------------------------------------------------------------------------


class Moment(NamedTuple):
    """What a server holds."""

    seconds: float
    memory: float
    disk: float


def soak(minutes: float, rate: int = 200) -> bool:
    """Traffic at a steady rate, with retention on: size and memory must level off."""
    seen = list(_soaked(minutes * 60, rate))
    third = len(seen) // 3
    middle, last = seen[third : 2 * third], seen[2 * third :]
    print(f"\n{minutes:g} minutes at {rate} spans a second, kept {RETENTION} s\n")
    print("| seconds | MB of memory | MB on disk |\n|---:|---:|---:|")
    for moment in seen[:: max(1, len(seen) // 12)]:
        print(f"| {moment.seconds:.0f} | {moment.memory:.0f} | {moment.disk:.1f} |")
    grown = [
        max(getattr(m, name) for m in last) / max(getattr(m, name) for m in middle)
        for name in ("memory", "disk")
    ]
    print(f"\nlast third against the middle: memory × {grown[0]:.2f}, disk × {grown[1]:.2f}")
    return max(grown) <= GOAL_LEVEL


def _soaked(seconds: float, rate: int) -> Iterator[Moment]:
    with proctor("--retention", f"{RETENTION}s", "--evaluate", "--quiet-after", "2s") as server:
        begun, sent, told = time.monotonic(), 0, 0.0
        while (passed := time.monotonic() - begun) < seconds:
            if sent < passed * rate:
                send(server.port, invented(1, spans=50, seed=sent).bodies)
                sent += 50
            else:
                time.sleep(0.02)
            if passed >= told:
                told += max(2.0, seconds / 60)
                disk = sum(file.stat().st_size for file in server.folder.glob("t.db*"))
                yield Moment(passed, server.memory(), disk / 1e6)


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    parser.add_argument("--only", choices=("ingest", "query", "page", "soak"))
    parser.add_argument("--minutes", type=float, default=2.0, help="of the soak")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--store", choices=(SQLITE, POSTGRES), help="the one database whose lists are measured"
    )
    parser.add_argument("--without", action="append", default=[], choices=list(CONTESTANTS))
    given = parser.parse_args()
    quick = given.quick
    names = [name for name in CONTESTANTS if name not in given.without]
    loads: dict[str, Callable[[int], Load]] = {
        "invented spans": lambda seed: invented(20 if quick else 200, seed=seed)
    }
    if (found := trail(1, files=2)) is not None and found.spans:
        loads["TRAIL's spans"] = lambda seed: trail(1 if quick else 4, seed) or found
    parts: dict[str, Callable[[], bool]] = {
        "ingest": lambda: ingest(loads, 1 if quick else given.rounds, names),
        "query": lambda: query(
            5_000 if quick else 100_000, [given.store] if given.store else [SQLITE, POSTGRES]
        ),
        "page": page,
        "soak": lambda: soak(0.5 if quick else given.minutes),
    }
    print(machine())
    missed = [
        name for name, part in parts.items() if given.only in (None, name) and part() is not True
    ]
    if missed:
        print(f"\ngoals missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

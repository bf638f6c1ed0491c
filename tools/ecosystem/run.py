"""Run one small agent of each framework through Proctor, and write the table of the results.

    python3 dev.py ecosystem              every framework, then docs/reference/frameworks.md
    python3 dev.py ecosystem crewai agno  only these, printed
    python3 dev.py ecosystem coding-agents --trials 20   coding agents (`tools/coding_agents.py`)

Each framework is installed with Proctor into an environment of its own below .cache/ecosystem, in
its newest version, and `check.py` runs there against the mock model. Needs the network and uv.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".cache" / "ecosystem"
PAGE = ROOT / "docs" / "reference" / "frameworks.md"


INTRODUCTION = """\
# Frameworks

One small agent per framework, each installed with Proctor into an environment of its own and run \
against the [mock model](../how-to/mock-llm.md): three cases, three trials each, four at a time. \
`python3 dev.py ecosystem` repeats it with the newest versions and writes this page.

A cell is yes if all nine traces have it. Model calls: one span for each request that the model \
received. Messages, tokens, price: of every call. Tool calls: each exactly once; arguments and \
results as they were. Verdict: two cases pass, and the one with a wrong answer fails. Apart: no \
trace has anything of another trial.
"""


class Framework(NamedTuple):
    """What to install, the package whose version is shown, the agent, and a note."""

    title: str
    packages: tuple[str, ...]
    agent: dict[str, object]
    note: str = ""

    @property
    def name(self) -> str:
        """Return the name of its environment, and for the command line."""
        return self.packages[0].partition("[")[0].rpartition("/")[2]


def python(module: str) -> dict[str, object]:
    """Return an agent that is a function."""
    return {"kind": "python", "target": f"{module}:answer"}


def command(*parts: str) -> dict[str, object]:
    """Return an agent that is a program, observed through the gateway."""
    return {"kind": "command", "command": list(parts), "protocol": "text", "gateway": True}


GATEWAY = "another process calls the model: `gateway: true`"
FRAMEWORKS = (
    Framework(
        "pydantic-ai",
        ("pydantic-ai-slim[openai]",),
        {"kind": "pydantic_ai", "target": "pydantic_ai_agent:agent"},
    ),
    Framework(
        "LangGraph (`create_agent`)",
        ("langchain", "langgraph", "langchain-openai"),
        {"kind": "langgraph", "target": "langgraph_agent:agent"},
    ),
    Framework(
        "OpenAI Agents",
        ("openai-agents",),
        {"kind": "openai_agents", "target": "openai_agents_agent:agent"},
    ),
    Framework("CrewAI", ("crewai",), python("crewai_agent")),
    Framework("smolagents", ("smolagents[openai]",), python("smolagents_agent")),
    Framework("Google ADK", ("google-adk",), python("google_adk_agent")),
    Framework("AutoGen", ("autogen-agentchat", "autogen-ext[openai]"), python("autogen_agent")),
    Framework("AG2", ("ag2[openai]",), python("ag2_agent")),
    Framework("Microsoft Agent Framework", ("agent-framework",), python("agent_framework_agent")),
    Framework(
        "LlamaIndex",
        ("llama-index",),
        python("llama_index_agent"),
        "tokens: its streams report them with `stream_options: {include_usage: true}`",
    ),
    Framework(
        "DSPy",
        ("dspy",),
        python("dspy_agent"),
        "tools are requested in text: `@proctor.tool` or OpenInference shows them",
    ),
    Framework(
        "Claude Agent SDK",
        ("claude-agent-sdk",),
        command("{python}", "{agents}/claude_agent_sdk_agent.py", "{input}"),
        GATEWAY,
    ),
    Framework("Strands", ("strands-agents[openai]",), python("strands_agent")),
    Framework("Agno", ("agno", "openai"), python("agno_agent")),
    Framework("`openai` loop", ("openai",), python("openai_loop")),
    Framework("`anthropic` loop, streamed", ("anthropic",), python("anthropic_loop")),
    Framework(
        "Vercel AI SDK (Node)",
        ("npm/ai", "npm/@ai-sdk/openai", "npm/zod"),
        command("node", "{agents}/vercel_ai_sdk.mjs", "{input}"),
        GATEWAY,
    ),
)


def tested(framework: Framework) -> tuple[str, dict[str, str]]:
    """Install a framework, run its agent; return the version and the cells."""
    folder = ENVIRONMENTS / framework.name
    interpreter = folder / "bin" / "python"
    if not interpreter.exists():
        check_call("uv", "venv", "-q", "--python", "3.11", folder)
    packages = [name for name in framework.packages if not name.startswith("npm/")]
    install = ("uv", "pip", "install", "-q", "--python", interpreter, "-e", f"{ROOT}[gateway]")
    check_call(*install, *packages)
    modules = [name.removeprefix("npm/") for name in framework.packages if "npm/" in name]
    if modules:
        check_call("npm", "install", "--silent", "--prefix", folder, *modules)
        about = json.loads((folder / "node_modules" / modules[0] / "package.json").read_text())
        version = about["version"]
    else:
        asked = f"import importlib.metadata as m; print(m.version({framework.name!r}))"
        version = check_call(interpreter, "-c", asked).strip()
    agent = json.dumps(framework.agent)
    agent = agent.replace("{python}", str(interpreter)).replace("{agents}", str(HERE / "agents"))
    done = subprocess.run(
        [interpreter, HERE / "check.py", agent],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NODE_HOME": str(folder)},
    )
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        found = {"problem": done.stderr[-500:]}
    return version, found.get("cells") or {"model calls": found["problem"]}


def check_call(*parts: object) -> str:
    """Run a command and return its output; its errors are ours."""
    return subprocess.run(
        [str(part) for part in parts], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def page(rows: "list[tuple[Framework, str, dict[str, str]]]") -> str:
    """Return the page with the table."""
    columns = list(rows[0][2])
    lines = [
        INTRODUCTION,
        f"| framework | version | {' | '.join(columns)} | note |",
        f"|---|---|{'---|' * len(columns)}---|",
    ]
    for framework, version, cells in rows:
        shown = " | ".join(cells.get(name, "–").replace("|", "/") for name in columns)
        lines.append(f"| {framework.title} | {version} | {shown} | {framework.note} |")
    return "\n".join([*lines, ""])


def coding_agents(arguments: "list[str]") -> int:
    """Install the coding agents in their pinned versions, and run them through the gateway."""
    folder = ENVIRONMENTS / "coding-agents"
    interpreter = folder / "proctor" / "bin" / "python"
    if not interpreter.exists():
        check_call("uv", "venv", "-q", "--python", "3.11", folder / "proctor")
    install = ("uv", "pip", "install", "-q", "--python", interpreter)
    check_call(*install, "-e", f"{ROOT}[gateway]", "pytest")  # which judges the trials
    tool = ROOT / "tools" / "coding_agents.py"
    return subprocess.run(
        [interpreter, tool, *arguments, "--install", folder], check=False
    ).returncode


def main(names: "list[str]") -> int:
    """Test the named frameworks, or all of them."""
    if shutil.which("uv") is None:
        print("error: uv is missing: pip install uv", file=sys.stderr)
        return 2
    if names[:1] == ["coding-agents"]:
        return coding_agents(names[1:])
    chosen = [f for f in FRAMEWORKS if not names or f.name in names]
    rows: list[tuple[Framework, str, dict[str, str]]] = []
    for framework in chosen:
        version, cells = tested(framework)
        rows.append((framework, version, cells))
        print(framework.name, version, json.dumps(cells), flush=True)
    if not names:
        PAGE.write_text(page(rows), encoding="utf-8")
    return int(any(cell != "yes" for *_, cells in rows for cell in cells.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

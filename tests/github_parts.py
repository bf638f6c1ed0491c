"""GitHub as a job sees it: its REST API on a local server, and its runner for composite actions.

The server keeps comments and artifacts, pages its lists, redirects downloads to another address,
and refuses what a token may not do. The runner interprets `action.yml` itself: expressions,
conditions, outputs, `shell: bash` steps in real processes; of the actions of others only
`upload-artifact` is there.
"""

import io
import json
import os
import re
import subprocess
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

OWNER = "acme/shop"
WRITES, READS = "ghs_writes", "ghs_reads"
"""Tokens: of a job in the repository, and of a fork's job."""


class GitHub:
    """Comments and artifacts of one repository, behind the addresses of the REST API."""

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = []
        self.artifacts: list[dict[str, Any]] = []
        self.archives: dict[int, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.failures: list[int] = []
        """Statuses of the next answers, before anything is done."""
        self.leaked: list[str] = []
        """Tokens that reached the storage."""
        api = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"null")
                status, content, more = api.answer(
                    self.command, self.path, self.headers.get("Authorization", ""), body
                )
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **more}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_PUT = answer  # noqa: N815 (names of the base class)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._store = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        for server in (self._server, self._store):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.storage = f"http://127.0.0.1:{self._store.server_port}"

    def close(self) -> None:
        for server in (self._server, self._store):
            server.shutdown()
            server.server_close()

    def add_artifact(self, name: str, folder: Path, branch: str, run_id: int, **job: Any) -> None:
        """Keep a folder, as `upload-artifact` does: its files, without hidden ones."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for path in sorted(folder.rglob("*")):
                parts = path.relative_to(folder).parts
                if path.is_file() and not any(part.startswith(".") for part in parts):
                    archive.write(path, "/".join(parts))
        number = len(self.artifacts) + 1
        self.archives[number] = packed.getvalue()
        self.artifacts.insert(
            0,
            {
                "id": number,
                "name": name,
                "expired": False,
                "workflow_run": {
                    "id": run_id,
                    "repository_id": 1,
                    "head_repository_id": 1,
                    "head_branch": branch,
                    "head_sha": f"{number:040x}",
                    **job,
                },
            },
        )

    def answer(self, method: str, target: str, token: str, body: Any) -> tuple[int, Any, dict]:
        parts = urlsplit(target)
        path, query = parts.path, {k: v[0] for k, v in parse_qs(parts.query).items()}
        if found := re.fullmatch(r"/storage/(\d+)", path):
            self.leaked += [token] if token else []
            return 200, self.archives[int(found[1])], {}
        self.requests.append((method, path))
        if self.failures:
            return self.failures.pop(0), {"message": "try again"}, {"Retry-After": "0"}
        if token not in (f"Bearer {WRITES}", f"Bearer {READS}"):
            return 401, {"message": "Bad credentials"}, {}
        if method != "GET" and token != f"Bearer {WRITES}":
            return 403, {"message": "Resource not accessible by integration"}, {}
        page, size = int(query.get("page", 1)), int(query.get("per_page", 30))
        shown = slice((page - 1) * size, page * size)
        if path == f"/repos/{OWNER}/actions/artifacts":
            named = [a for a in self.artifacts if a["name"] == query.get("name", a["name"])]
            return 200, {"total_count": len(named), "artifacts": named[shown]}, {}
        if found := re.fullmatch(rf"/repos/{OWNER}/actions/artifacts/(\d+)/zip", path):
            return 302, b"", {"Location": f"{self.storage}/storage/{found[1]}"}
        if path == "/user":
            # The token of a job belongs to no user.
            return 403, {"message": "Resource not accessible by integration"}, {}
        if path == f"/repos/{OWNER}/issues/7/comments":
            if method == "GET":
                return 200, self.comments[shown], {}
            return 201, self.add_comment(body["body"], "github-actions[bot]", "Bot"), {}
        if found := re.fullmatch(rf"/repos/{OWNER}/issues/comments/(\d+)", path):
            one = next((c for c in self.comments if c["id"] == int(found[1])), None)
            if one is None:
                return 404, {"message": "Not Found"}, {}
            one["body"] = body["body"]
            return 200, one, {}
        return 404, {"message": "Not Found"}, {}

    def add_comment(self, body: str, login: str, kind: str = "User") -> dict[str, Any]:
        number = len(self.comments) + 1
        self.comments.append(
            {
                "id": number,
                "body": body,
                "html_url": f"https://github.com/{OWNER}/pull/7#issuecomment-{number}",
                "user": {"login": login, "id": hash(login), "type": kind},
            }
        )
        return self.comments[-1]


class Job:
    """A job of one push: its event, its token, its files; runs the action."""

    def __init__(
        self,
        github: GitHub,
        folder: Path,
        *,
        number: int,
        fork: bool = False,
        pull_request: bool = True,
        token: str | None = None,
    ) -> None:
        self.github, self.folder, self.number = github, folder, number
        self.token = token or (READS if fork else WRITES)
        self.branch = "change" if pull_request else "main"
        self.temp = folder / f".job-{number}"
        self.temp.mkdir()
        event: dict[str, Any] = {"repository": {"default_branch": "main"}}
        if pull_request:
            head = {"full_name": "stranger/shop" if fork else OWNER}
            event["pull_request"] = {"number": 7, "head": {"repo": head}, "base": {"ref": "main"}}
        (self.temp / "event.json").write_text(json.dumps(event))
        for name in ("summary", "output"):
            (self.temp / name).touch()

    @property
    def summary(self) -> str:
        return (self.temp / "summary").read_text(encoding="utf-8")

    def environ(self, bin_folder: Path) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "PROCTOR_"))}
        return {
            **kept,
            "PATH": f"{bin_folder}{os.pathsep}{kept['PATH']}",
            "GITHUB_ACTIONS": "true",
            "GITHUB_API_URL": self.github.url,
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_REPOSITORY": OWNER,
            "GITHUB_RUN_ID": str(self.number),
            "GITHUB_EVENT_PATH": str(self.temp / "event.json"),
            "GITHUB_STEP_SUMMARY": str(self.temp / "summary"),
            "GITHUB_OUTPUT": str(self.temp / "output"),
            "GITHUB_WORKSPACE": str(self.folder),
            "NO_COLOR": "1",
        }

    def run(self, action: Path, bin_folder: Path, **inputs: str) -> "Done":
        """Run the steps of an action as the runner does."""
        declared = yaml.safe_load(action.read_text(encoding="utf-8"))
        unknown = {*inputs} - {*declared["inputs"]}
        assert not unknown, unknown
        known = {"github.token": self.token}
        for name, about in declared["inputs"].items():
            assert name in inputs or not about.get("required"), f"input {name} is required"
            known[f"inputs.{name}"] = inputs.get(name, fill(str(about.get("default", "")), known))
        code, printed = 0, ""
        for step in declared["runs"]["steps"]:
            if not holds(step.get("if", ""), known, failed=code != 0):
                continue
            if "run" in step:
                assert step["shell"] == "bash", step
                assert "${{" not in step["run"], "inputs would become a part of the script"
                env = {name: fill(value, known) for name, value in step.get("env", {}).items()}
                done = subprocess.run(
                    ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                    cwd=self.folder / fill(step.get("working-directory", "."), known),
                    env={**self.environ(bin_folder), **env},
                    capture_output=True,
                    encoding="utf-8",
                    check=False,
                )
                code, printed = code or done.returncode, printed + done.stdout + done.stderr
                lines = (self.temp / "output").read_text(encoding="utf-8").splitlines()
                for name, _, value in (line.partition("=") for line in lines):
                    known[f"steps.{step.get('id')}.outputs.{name}"] = value
            else:
                assert step["uses"].startswith("actions/upload-artifact@"), step["uses"]
                given = {name: fill(value, known) for name, value in step["with"].items()}
                self.github.add_artifact(
                    given["name"], Path(given["path"]), self.branch, self.number
                )
        outputs = {name: fill(about["value"], known) for name, about in declared["outputs"].items()}
        return Done(code, printed, outputs)


class Done:
    """How a job ended: its code, what it printed, the outputs of the action."""

    def __init__(self, code: int, printed: str, outputs: dict[str, str]) -> None:
        self.code, self.printed, self.outputs = code, printed, outputs

    @property
    def annotations(self) -> list[tuple[str, str]]:
        """Level and title of the workflow commands."""
        found = re.findall(r"^::(\w+) .*?title=(.*?)::", self.printed, re.MULTILINE)
        return [(level, title.replace("%3A", ":")) for level, title in found]


def fill(text: str, known: dict[str, str]) -> str:
    """Replace `${{ name }}`; an output of a step that did not run is empty."""
    return re.sub(
        r"\$\{\{ *([\w.-]+) *\}\}",
        lambda match: known[match[1]] if match[1] in known else _unset(match[1]),
        text,
    )


def _unset(name: str) -> str:
    assert name.startswith("steps."), f"nothing is known of {name}"
    return ""


def holds(condition: str, known: dict[str, str], *, failed: bool) -> bool:
    """Evaluate `a == 'b' && always()`; without a status function a failure ends the job."""
    parts = [part.strip() for part in condition.split("&&") if part.strip()]
    if failed and "always()" not in parts:
        return False
    for part in parts:
        if part == "always()":
            continue
        found = re.fullmatch(r"([\w.-]+) (==|!=) '([^']*)'", part)
        assert found, f"cannot evaluate {part!r}"
        value = known[found[1]] if found[1] in known else _unset(found[1])
        if (value == found[3]) != (found[2] == "=="):
            return False
    return True

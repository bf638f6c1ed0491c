"""What a CI job knows from its code host, GitHub or GitLab, and the one comment it keeps there.

Guarantees: a pull request has one comment per name, however often the job runs; only a comment of a
bot or of the token's own user is changed. A token that may not write (the job of a fork) is no
error of the job: `comment` raises `CommentRefused`. A reference run is never taken from a fork.
Requests are retried as model calls are. Trade-off: a comment is found by a hidden line in it, so a
bot that quotes the line at the start of its own comment would lose that comment.
"""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from proctor.errors import ProctorError
from proctor.llm.retry import MAX_DELAY, MAX_RETRIES, retry_delay, transient
from proctor.sanitize import line

if TYPE_CHECKING:
    import httpx

TIMEOUT = 30.0
PER_PAGE = 100
"""The largest page both hosts offer."""

MAX_PAGES = 100
"""Pages of comments or artifacts to read; a server that offers more than 10,000 is in a loop."""

MAX_COMMENT = {"github": 65_536, "gitlab": 1_000_000}
"""Characters of a comment; longer ones are refused as a whole."""

MAX_ARCHIVE = 512 << 20
"""Bytes of a downloaded run: a run of 10,000 trials with traces has about a tenth of this."""

MAX_UNPACKED = 4 << 30


class CommentRefused(ProctorError):
    """The token may not write comments, as that of a fork's job."""


class CodeHost(NamedTuple):
    """The host of a CI job: where its API is, and what the job is about."""

    kind: str
    """`github` or `gitlab`."""
    api: str
    comments: str | None
    """The address of the comments of the pull request; None where there is none."""
    artifacts: str | None
    """The address of the artifacts of the repository; None where they cannot be listed."""
    branch: str
    """The branch whose run is the reference."""
    job_url: str
    job_id: str
    may_comment: bool
    """Whether the token may write: false for the job of a fork."""
    headers: Mapping[str, str]


def host_from(environ: Mapping[str, str]) -> CodeHost | None:
    """Return the code host of this job, from the variables it sets; None outside of CI."""
    if environ.get("GITHUB_ACTIONS") == "true":
        return _github(environ)
    if environ.get("GITLAB_CI") == "true":
        return _gitlab(environ)
    return None


def _github(environ: Mapping[str, str]) -> CodeHost:
    event: Mapping[str, Any] = {}
    if path := environ.get("GITHUB_EVENT_PATH"):
        try:
            event = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ProctorError(f"cannot read the event: {error}", where=path) from None
    name = environ.get("GITHUB_REPOSITORY", "")
    api = environ.get("GITHUB_API_URL", "https://api.github.com")
    pull = _part(event, "pull_request")
    # A deleted fork has no repository any more; its job is one of a fork all the same.
    head = _part(_part(pull, "head"), "repo")
    run_id = environ.get("GITHUB_RUN_ID", "")
    server = environ.get("GITHUB_SERVER_URL", "https://github.com")
    token = environ.get("GITHUB_TOKEN", "")
    default = _part(event, "repository").get("default_branch") or "main"
    return CodeHost(
        kind="github",
        api=api,
        comments=f"{api}/repos/{name}/issues/{pull['number']}/comments" if pull else None,
        artifacts=f"{api}/repos/{name}/actions/artifacts" if token and name else None,
        branch=str(_part(pull, "base").get("ref") or default),
        job_url=f"{server}/{name}/actions/runs/{run_id}",
        job_id=run_id,
        may_comment=bool(token) and (not pull or head.get("full_name") == name),
        headers={
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            **({"Authorization": f"Bearer {token}"} if token else {}),
        },
    )


def _part(of: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a part of a document of the host; empty where it is missing or null."""
    return cast("dict[str, Any]", of.get(key) or {})


def _gitlab(environ: Mapping[str, str]) -> CodeHost:
    api, project = environ.get("CI_API_V4_URL", ""), environ.get("CI_PROJECT_ID", "")
    number = environ.get("CI_MERGE_REQUEST_IID")
    # The token of the job itself may not write notes: a project access token can.
    token = environ.get("GITLAB_TOKEN", "")
    notes = f"{api}/projects/{project}/merge_requests/{number}/notes"
    return CodeHost(
        kind="gitlab",
        api=api,
        comments=notes if number else None,
        artifacts=None,
        branch=environ.get("CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
        or environ.get("CI_DEFAULT_BRANCH", "main"),
        job_url=environ.get("CI_JOB_URL", ""),
        job_id=environ.get("CI_JOB_ID", ""),
        may_comment=bool(token),
        headers={"PRIVATE-TOKEN": token} if token else {},
    )


class HostClient:
    """Calls the API of a code host."""

    def __init__(self, host: CodeHost, sleep: Callable[[float], object] = time.sleep) -> None:
        import httpx

        self.host = host
        self._http = httpx.Client(headers=dict(host.headers), timeout=TIMEOUT)
        self._sleep, self._random = sleep, Random(0)  # noqa: S311 (spreads waits)

    def __enter__(self) -> HostClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    # -- the comment -----------------------------------------------------------------------------

    def comment(self, name: str, body: str) -> str:
        """Write the comment of that name, or replace its text; return its address."""
        address = self.host.comments
        assert address is not None, "no pull request"
        marker = f"<!-- proctor-ci: {json.dumps(name)[1:-1].replace('--', '-')} -->"
        content = {"body": cut(f"{marker}\n{body}", MAX_COMMENT[self.host.kind])}
        own = next((c for c in self._items(address) if self._is_own(c, marker)), None)
        if own is None:
            return self._written(self._call("POST", address, json=content))
        if self.host.kind == "gitlab":
            changed = self._call("PUT", f"{address}/{own['id']}", json=content)
        else:
            # Comments are changed by their own id: the pull request is not in the address.
            place = f"{address.rsplit('/', 2)[0]}/comments/{own['id']}"
            changed = self._call("PATCH", place, json=content)
        # It may have been deleted since it was listed.
        if changed.status_code == 404:
            changed = self._call("POST", address, json=content)
        return self._written(changed)

    def _is_own(self, comment: Mapping[str, Any], marker: str) -> bool:
        if not str(comment.get("body", "")).startswith(marker):
            return False
        # Anyone can write the marker; text of other people is never replaced.
        author = _part(comment, "user") or _part(comment, "author")
        if author.get("type") == "Bot":
            return True
        me = self._call("GET", f"{self.host.api}/user")
        return me.status_code == 200 and me.json().get("id") == author.get("id")

    def _written(self, answer: httpx.Response) -> str:
        # GitLab answers 404 for what a token may not see.
        if answer.status_code in (401, 403, 404):
            raise CommentRefused(f"the token may not write comments ({_reason(answer)})")
        _check(answer)
        found = answer.json()
        return str(found.get("html_url") or self.host.job_url)

    # -- the reference run -----------------------------------------------------------------------

    def download_run(self, artifact: str, folder: Path) -> dict[str, Any] | None:
        """Unpack the newest run of the reference branch; return its job, None if there is none.

        A pull request of a fork may come from a branch of the same name, so an artifact counts only
        if its job ran in the repository itself.
        """
        if self.host.artifacts is None:
            return None
        address = f"{self.host.artifacts}?name={artifact}"
        for each in self._items(address, "artifacts"):
            job = _part(each, "workflow_run")
            if (
                not each.get("expired")
                and job.get("head_branch") == self.host.branch
                and job.get("head_repository_id") == job.get("repository_id")
                and str(job.get("id")) != self.host.job_id
            ):
                self._unpack(f"{self.host.artifacts}/{each['id']}/zip", folder)
                return job
        return None

    def _unpack(self, address: str, folder: Path) -> None:
        aside = folder / "artifact.zip"
        # The redirect leads to a store elsewhere, which httpx sends no token.
        with self._http.stream("GET", address, follow_redirects=True) as answer:
            _check(answer)
            size = 0
            with aside.open("wb") as file:
                for piece in answer.iter_bytes():
                    size += len(piece)
                    if size > MAX_ARCHIVE:
                        raise ProctorError("the run is larger than 512 MB", where=address)
                    file.write(piece)
        try:
            with zipfile.ZipFile(aside) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > MAX_UNPACKED:
                    raise ProctorError("the run unpacks to more than 4 GB", where=address)
                archive.extractall(folder)  # drops `..` and absolute paths, makes no links
        except (zipfile.BadZipFile, OSError, RuntimeError) as error:
            raise ProctorError(f"not a readable archive: {error}", where=address) from None
        aside.unlink()

    # -- requests --------------------------------------------------------------------------------

    def _items(self, address: str, key: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, page by page."""
        joint = "&" if "?" in address else "?"
        for page in range(1, MAX_PAGES + 1):
            answer = _check(
                self._call("GET", f"{address}{joint}per_page={PER_PAGE}&page={page}")
            ).json()
            items = answer if key is None else answer.get(key, [])
            yield from items
            if len(items) < PER_PAGE:
                return

    def _call(self, method: str, address: str, **content: Any) -> httpx.Response:
        import httpx

        for attempt in range(MAX_RETRIES + 1):
            try:
                answer = self._http.request(method, address, **content)
                failure = None if answer.status_code < 400 else _failure(answer)
            except httpx.HTTPError as error:
                answer, failure = None, error
            again = None if failure is None else transient(failure)
            if again is None or attempt == MAX_RETRIES:
                if answer is None:
                    why = line(str(failure) or type(failure).__name__)
                    raise ProctorError(f"cannot reach the code host: {why}", where=address)
                return answer
            self._sleep(min(retry_delay(attempt, again.retry_after, self._random), MAX_DELAY))
        raise AssertionError("the loop returns")


def cut(text: str, limit: int) -> str:
    """Return a Markdown text within the limit, cut between lines."""
    note = "\n\n… cut: the report has everything\n"
    if len(text) <= limit:
        return text
    return text[: limit - len(note)].rpartition("\n")[0] + note


def _failure(answer: httpx.Response) -> Exception:
    import httpx

    return httpx.HTTPStatusError(_reason(answer), request=answer.request, response=answer)


def _check(answer: httpx.Response) -> httpx.Response:
    if answer.status_code < 400:
        return answer
    hint = None
    if answer.status_code in (401, 403):
        hint = "give the job `permissions: {actions: read, pull-requests: write}`"
    raise ProctorError(_reason(answer), where=str(answer.request.url), hint=hint)


def _reason(answer: httpx.Response) -> str:
    try:
        message = line(str(answer.json()["message"]), 200)
    except Exception:  # noqa: BLE001 (any body may come with an error)
        message = answer.reason_phrase
    return f"{answer.status_code} {message}"

"""Ask a person at the terminal, and resume unfinished episodes.

Guarantees: text from a case or a world cannot control the terminal, and only valid actions are
accepted. In a world every move is saved to a file until the episode ends, so a person who quits (or
loses the terminal) resumes when the same trial runs again: the moves are replayed as long as the
world shows the same observations.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO, cast

import msgspec

from proctor.agents.actions import Actions, ActionTurn, BadAction, is_call, shown, understand
from proctor.agents.base import AgentError, AgentRequest
from proctor.files import replacing
from proctor.sanitize import printable
from proctor.user_dirs import user_folder

# Input keys that may hold the possible answers; the first one present wins.
ACTION_KEYS = ("actions", "valid_actions", "choices", "options")

QUIT_WORDS = frozenset({"/quit", "/exit"})
# Command that shows the task again, which is printed at the first turn only.
TASK_WORD = "/task"

_TERMINAL = Path("/dev/tty")
_one_at_a_time = threading.Lock()


def actions_of(value: Any) -> Actions | None:
    """Return the answers that an input allows, or None if it lists none."""
    if not isinstance(value, Mapping):
        return None
    given = cast("Mapping[str, Any]", value)
    for key in ACTION_KEYS:
        listed = given.get(key)
        if isinstance(listed, list | tuple) and listed:
            return list(cast("list[Any]", listed))
        if isinstance(listed, Mapping) and "type" in listed:
            return cast("Mapping[str, Any]", listed)
    return None


# -- the moves of an unfinished episode ----------------------------------------------------------


class HumanMove(msgspec.Struct, frozen=True):
    """An action, and the observation it was chosen for."""

    seen: str
    action: Any


class SavedMoves:
    """Moves of one trial, in `<folder>/<hash of the trial>.json`; deleted when it ends."""

    def __init__(
        self, folder: Path | None, turn: ActionTurn, participant: str | None = None
    ) -> None:
        trial = [turn.case, turn.trial, turn.seed, turn.params]
        if participant is not None:  # another person's moves are not resumed
            trial.append(participant)
        name = sha256(msgspec.json.encode(trial, enc_hook=str, order="sorted")).hexdigest()[:32]
        self.path = (folder or default_folder()) / f"{name}.json"
        self.moves = self._read()

    def again(self, turn: ActionTurn) -> HumanMove | None:
        """Return the saved move of this step if the world shows the same observation."""
        if turn.step >= len(self.moves):
            return None
        move = self.moves[turn.step]
        if move.seen == _digest(turn.observation):
            return move
        # The world went another way: the later moves were chosen for a different state.
        del self.moves[turn.step :]
        return None

    def add(self, turn: ActionTurn, action: Any) -> None:
        """Save a move; a second one at the same step replaces the first."""
        del self.moves[turn.step :]
        self.moves.append(HumanMove(_digest(turn.observation), action))
        # An unwritable folder must not end the game: only resuming is lost.
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path, sync=False) as aside:
                aside.write_bytes(msgspec.json.encode(self.moves, enc_hook=str))

    def forget(self) -> None:
        """Delete the moves: the episode is over or restarts."""
        self.moves = []
        with suppress(OSError):
            self.path.unlink()

    def _read(self) -> list[HumanMove]:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=list[HumanMove])
        except (OSError, msgspec.MsgspecError):
            return []


def default_folder() -> Path:
    """Return the folder of unfinished episodes in the XDG state directory."""
    return user_folder("state", "human")


def _digest(observation: Any) -> str:
    return sha256(msgspec.json.encode(observation, enc_hook=str)).hexdigest()[:16]


# -- dialogue ------------------------------------------------------------------------------------


def ask_person(request: AgentRequest) -> Any:
    """Ask on the terminal, or on standard input and error if there is none."""
    with _terminal() as (read, write):
        return converse(request, read, write)


def offer_to_resume(saved: SavedMoves) -> None:
    """Ask whether to resume the saved moves, and delete them if not."""
    with _terminal() as (read, write):
        prompt = (
            f"\nThis trial was interrupted after {len(saved.moves)} moves. "
            "Press Enter to continue, or type `new` to restart: "
        )
        if _line(read, write, prompt, len(saved.moves)).casefold() == "new":
            saved.forget()


def show_person(text: str) -> None:
    """Print a message that needs no answer."""
    with _terminal() as (_, write):
        write.write(f"{printable(text, keep=chr(10))}\n")
        write.flush()


@contextmanager
def _terminal() -> Generator[tuple[TextIO, TextIO]]:
    """Hold the terminal: one question at a time, even when several trials run in parallel."""
    with _one_at_a_time, ExitStack() as files:
        # The terminal itself, because standard output may be redirected to a file.
        try:
            read = files.enter_context(_TERMINAL.open(encoding="utf-8", errors="replace"))
            write = files.enter_context(_TERMINAL.open("w", encoding="utf-8"))
        except OSError:
            read, write = sys.stdin, sys.stderr
        yield read, write


def _line(read: TextIO, write: TextIO, prompt: str, step: int | None) -> str:
    """Return the line that a person types; raise `AgentError` if there is none or they quit."""
    write.write(prompt)
    write.flush()
    line = read.readline()
    if not line:
        raise AgentError(
            "standard input is closed: no answer",
            category="",
            hint="run it at a terminal, or give the answers on standard input",
        )
    if line.strip() not in QUIT_WORDS:
        return line.strip()
    if step is None:
        raise AgentError("the person quit without an answer", category="")
    raise AgentError(
        f"the person quit at step {step}",
        category="",
        hint="the moves are saved: resume with `proctor run --retry-infra RUN` "
        "or by repeating the same run",
    )


def converse(request: AgentRequest, read: TextIO, write: TextIO) -> Any:
    """Return the person's answer: an action, by number or by text, or free text."""
    turn = request if isinstance(request, ActionTurn) else None
    actions = actions_of(request.input) if turn is None else turn.actions
    where = "" if turn is None else f", step {turn.step + 1} of at most {turn.max_steps}"
    write.write(f"\n── case {printable(request.case)}, trial {request.index + 1}{where} ──\n")
    write.write(printable(_question(request.input, turn), keep="\n\t") + "\n")
    if isinstance(actions, Mapping):
        write.write(f"  {printable(shown(actions))}\n")
    else:
        for number, action in enumerate(actions or (), start=1):
            text = shown(action) if is_call(action) else _json_text(action)
            write.write(f"  {number}) {printable(text)}\n")
    prompt = "answer" if actions is None else "number or answer"
    while True:
        step = None if turn is None else turn.step
        answer = _line(read, write, f"{prompt} (/quit to stop): ", step)
        if turn is not None and answer == TASK_WORD:
            write.write(printable(_text(turn.task), keep="\n\t") + "\n")
            continue
        if actions is None:
            return answer
        try:
            return _select(answer, actions)
        except BadAction as problem:
            write.write(f"{printable(str(problem))}\n")


def _select(answer: str, actions: Actions) -> Any:
    """Return the selected action: by its text first, which may be a number too, then by number."""
    try:
        return understand(answer, actions)
    except BadAction as problem:
        if isinstance(actions, Mapping) or not answer.isdecimal():
            raise
        number = int(answer)
        if not 1 <= number <= len(actions):
            raise BadAction(f"{answer} is not one of the {len(actions)} actions") from problem
        option = actions[number - 1]
        return understand(option["call"], actions) if is_call(option) else option


def _question(value: Any, turn: ActionTurn | None) -> str:
    if turn is None:
        return _text(value)
    parts: list[str] = []
    if turn.step == 0 and turn.error is None and turn.task not in (None, ""):
        parts.append(_text(turn.task) + "\n")
    if turn.error is not None:
        parts.append(f"not accepted: {turn.error}")
    elif turn.last is not None:
        parts += [
            f"{key}: {_json_text(turn.last[key])}" for key in ("reward", "info") if key in turn.last
        ]
    if turn.picture is not None:
        parts.append(turn.picture)
    parts.append(_text(turn.observation))
    return "\n".join(parts)


def _text(value: Any) -> str:
    """Return a value as readable text: its only text, or indented JSON."""
    if not isinstance(value, Mapping):
        return _json_text(value)
    plain: Any = {k: v for k, v in cast("Mapping[str, Any]", value).items() if k not in ACTION_KEYS}
    texts = list(plain.values())
    if len(texts) == 1 and isinstance(texts[0], str):
        return texts[0]
    return msgspec.json.format(msgspec.json.encode(plain, enc_hook=str), indent=2).decode()


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()

"""A person at the terminal: what they are shown, what they may say, and where they left off.

Promise: nothing a case or a world says is obeyed by the terminal; only a valid action is taken.
In a world every move is kept in a file of its own until the episode ends, so whoever quits (or
loses the terminal) goes on where they stopped when the same trial is put to them again: the moves
are made once more, as long as the world shows what it showed then.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO, cast

import msgspec

from proctor.agents.actions import Actions, ActionTurn, BadAction, is_call, shown, understand
from proctor.agents.base import AgentError, AgentRequest
from proctor.files import replacing
from proctor.sanitize import printable
from proctor.user_dirs import user_folder

ACTION_KEYS = ("actions", "valid_actions", "choices", "options")
"""Keys of an input under which its possible answers may stand; the first there is is taken."""

QUIT_WORDS = frozenset({"/quit", "/exit"})
TASK_WORD = "/task"
"""Shows the task again, which stands above the first turn only."""

_TERMINAL = Path("/dev/tty")
_one_at_a_time = threading.Lock()


def actions_of(value: Any) -> Actions | None:
    """The answers that an input allows, or None when it does not say."""
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
    """An action, and what the world showed when it was chosen."""

    seen: str
    action: Any


class SavedMoves:
    """The moves of one trial, in a file `<folder>/<hash of the trial>.json`; gone when it ends."""

    def __init__(
        self, folder: Path | None, turn: ActionTurn, participant: str | None = None
    ) -> None:
        trial = [turn.case, turn.trial, turn.seed, turn.params]
        if participant is not None:  # nobody goes on with another's moves
            trial.append(participant)
        name = sha256(msgspec.json.encode(trial, enc_hook=str, order="sorted")).hexdigest()[:32]
        self.path = (folder or default_folder()) / f"{name}.json"
        self.moves = self._read()

    def again(self, turn: ActionTurn) -> HumanMove | None:
        """The move made at this step before, if the world shows the same."""
        if turn.step >= len(self.moves):
            return None
        move = self.moves[turn.step]
        if move.seen == _digest(turn.observation):
            return move
        del self.moves[turn.step :]
        return None

    def add(self, turn: ActionTurn, action: Any) -> None:
        """Keep a move; a second one at the same step takes the place of the first."""
        del self.moves[turn.step :]
        self.moves.append(HumanMove(_digest(turn.observation), action))
        # A person may play where nothing can be kept; they lose the way back, not the game.
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path, sync=False) as aside:
                aside.write_bytes(msgspec.json.encode(self.moves, enc_hook=str))

    def forget(self) -> None:
        """The episode is over, or begun anew."""
        self.moves = []
        with suppress(OSError):
            self.path.unlink()

    def _read(self) -> list[HumanMove]:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=list[HumanMove])
        except (OSError, msgspec.MsgspecError):
            return []


def default_folder() -> Path:
    """Where unfinished episodes are kept: the XDG state directory."""
    return user_folder("state", "human")


def _digest(observation: Any) -> str:
    return sha256(msgspec.json.encode(observation, enc_hook=str)).hexdigest()[:16]


# -- talking -------------------------------------------------------------------------------------


def ask_person(request: AgentRequest) -> Any:
    """Ask on the terminal, or on standard input and error where there is none."""
    with _one_at_a_time, ExitStack() as files:
        return converse(request, *_streams(files))


def offer_to_go_on(kept: SavedMoves) -> None:
    """Ask whether to take up what was left, and forget it if not."""
    with _one_at_a_time, ExitStack() as files:
        _offer(kept, *_streams(files))


def tell_person(text: str) -> None:
    """Say something that needs no answer."""
    with _one_at_a_time, ExitStack() as files:
        _, write = _streams(files)
        write.write(f"{printable(text, keep=chr(10))}\n")
        write.flush()


def _streams(files: ExitStack) -> tuple[TextIO, TextIO]:
    try:
        read = files.enter_context(_TERMINAL.open(encoding="utf-8", errors="replace"))
        return read, files.enter_context(_TERMINAL.open("w", encoding="utf-8"))
    except OSError:
        return sys.stdin, sys.stderr


def _offer(kept: SavedMoves, read: TextIO, write: TextIO) -> None:
    write.write(
        f"\nThis one was left after {len(kept.moves)} moves. Enter to go on, `new` to begin again: "
    )
    write.flush()
    line = read.readline()
    if not line:
        raise _nobody()
    if line.strip() in QUIT_WORDS:
        raise _left(len(kept.moves))
    if line.strip().casefold() == "new":
        kept.forget()


def converse(request: AgentRequest, read: TextIO, write: TextIO) -> Any:
    """The person's answer: one of the actions, by number or in words, or free text."""
    turn = request if isinstance(request, ActionTurn) else None
    actions = actions_of(request.input) if turn is None else turn.actions
    write.write(_heading(request, turn))
    write.write(printable(_question(request.input, turn), keep="\n\t") + "\n")
    write.write(_offered(actions))
    prompt = "answer" if actions is None else "number or answer"
    while True:
        write.write(f"{prompt} (/quit to leave it): ")
        write.flush()
        line = read.readline()
        if not line:
            raise _nobody()
        said = line.strip()
        if said in QUIT_WORDS:
            raise _left(None if turn is None else turn.step)
        if turn is not None and said == TASK_WORD:
            write.write(printable(_text(turn.task), keep="\n\t") + "\n")
            continue
        if actions is None:
            return said
        try:
            return _chosen(said, actions)
        except BadAction as problem:
            write.write(f"{printable(str(problem))}\n")


def _chosen(said: str, actions: Actions) -> Any:
    """The action meant: its own words first, since they may be numbers too, then its number."""
    try:
        return understand(said, actions)
    except BadAction as problem:
        if isinstance(actions, Mapping) or not said.isdecimal():
            raise
        number = int(said)
        if not 1 <= number <= len(actions):
            raise BadAction(f"{said} is not one of the {len(actions)} actions") from problem
        option = actions[number - 1]
        return understand(option["call"], actions) if is_call(option) else option


def _left(step: int | None) -> AgentError:
    if step is None:
        return AgentError("the person left without an answer")
    return AgentError(
        f"the person left at step {step}",
        hint="the moves are kept: `proctor run --retry-infra RUN`, or the same run again, goes on",
    )


def _nobody() -> AgentError:
    return AgentError(
        "nobody is there to answer",
        hint="run it at a terminal, or give the answers on standard input",
    )


def _heading(request: AgentRequest, turn: ActionTurn | None) -> str:
    where = "" if turn is None else f", step {turn.step + 1} of at most {turn.max_steps}"
    return f"\n── case {printable(request.case)}, trial {request.index + 1}{where} ──\n"


def _offered(actions: Actions | None) -> str:
    if actions is None:
        return ""
    if isinstance(actions, Mapping):
        return f"  {printable(shown(actions))}\n"
    lines = [shown(action) if is_call(action) else _words(action) for action in actions]
    return "".join(f"  {number}) {printable(line)}\n" for number, line in enumerate(lines, start=1))


def _question(value: Any, turn: ActionTurn | None) -> str:
    if turn is None:
        return _text(value)
    parts: list[str] = []
    if turn.step == 0 and turn.error is None and turn.task not in (None, ""):
        parts.append(_text(turn.task) + "\n")
    if turn.error is not None:
        parts.append(f"that did not work: {turn.error}")
    elif turn.last is not None:
        parts += [
            f"{key}: {_words(turn.last[key])}" for key in ("reward", "info") if key in turn.last
        ]
    if turn.picture is not None:
        parts.append(turn.picture)
    parts.append(_text(turn.observation))
    return "\n".join(parts)


def _text(value: Any) -> str:
    """A value as a person reads it: its one text, or JSON over several lines."""
    if not isinstance(value, Mapping):
        return _words(value)
    plain: Any = {k: v for k, v in cast("Mapping[str, Any]", value).items() if k not in ACTION_KEYS}
    texts = list(plain.values())
    if len(texts) == 1 and isinstance(texts[0], str):
        return texts[0]
    return msgspec.json.format(msgspec.json.encode(plain, enc_hook=str), indent=2).decode()


def _words(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()

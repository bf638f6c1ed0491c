"""Agents without a model: `random`, `scripted` and `human`.

They provide reference points: chance, a known solution and a person. A case lists the allowed
answers under `actions` in its input, a world at every step; `random` requires them. All three work
on questions and in worlds.

A person is asked at the terminal. Text from a case or a world cannot control it, and only valid
actions are accepted. In a world every move is saved to a file until the episode ends, so a person
who quits (or loses the terminal) resumes when the same trial runs again: the moves are replayed as
long as the world shows the same observations.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Literal, TextIO, cast

import msgspec
from pydantic import Field, model_validator

from proctor.agents.actions import (
    Actions,
    ActionTurn,
    BadAction,
    is_call,
    sample,
    shown,
    understand,
)
from proctor.agents.base import (
    Agent,
    AgentConfig,
    AgentError,
    AgentReply,
    AgentRequest,
    NoActionsError,
    as_reply,
    as_text,
)
from proctor.background import threads
from proctor.files import replacing
from proctor.imports import load_object
from proctor.sanitize import printable
from proctor.trace.capture import current_trace, span
from proctor.trace.model import EVERYTHING, Observable
from proctor.user_dirs import user_folder

# -- random --------------------------------------------------------------------------------------


class RandomAgentConfig(AgentConfig):
    """Answer with a uniformly random valid action."""

    kind: Literal["random"] = "random"
    actions: list[Any] | dict[str, Any] | None = Field(default=None, min_length=1)
    """Actions for cases that list none."""

    @property
    def observes(self) -> tuple[Observable, ...]:
        """Return everything: it has no tools and no model."""
        return EVERYTHING

    def create(self) -> Agent:
        """Create an agent seeded by its trial."""
        return RandomAgent(self.actions)


class RandomAgent:
    """Random agent. In a world each step has its own draw, from the trial's seed and the step."""

    def __init__(self, actions: Actions | None) -> None:
        self._actions = actions
        self._last_draw: tuple[int, int] = (-1, 0)

    async def run(self, request: AgentRequest) -> AgentReply:
        """Return one of the actions, deterministic for a seed and step."""
        if isinstance(request, ActionTurn):
            # A different draw after a rejected action, which repeats the step.
            step, draws = self._last_draw
            self._last_draw = (request.step, draws + 1 if request.step == step else 0)
            # A text seed: Python hashes it the same way on every machine.
            random = Random(f"{request.seed}/{request.step}/{self._last_draw[1]}")  # noqa: S311 (repeatable chance)
            return as_reply(self._draw(request.actions, random, request))
        actions = actions_of(request.input) or self._actions
        if actions is None:
            raise NoActionsError(
                f"case {request.case!r} lists no possible answers",
                category="",
                hint="list `actions` in the case's input, or in the agent's options",
            )
        chosen = self._draw(actions, Random(request.seed), request)  # noqa: S311 (chance, not secrecy)
        with span("choose", input=actions, output=chosen):
            return as_reply(chosen)

    def _draw(self, actions: Actions, random: Random, request: AgentRequest) -> Any:
        try:
            return sample(actions, random)
        except (BadAction, KeyError, IndexError) as problem:
            message = f"case {request.case!r}: actions: {problem}"
            raise AgentError(message, category="") from None


# -- scripted ------------------------------------------------------------------------------------


class ScriptedAgentConfig(AgentConfig):
    """Answer from a script: by case, in order, or by a function.

    With none of these it follows the scenario's own `solution`.
    """

    kind: Literal["scripted"] = "scripted"
    replies: list[Any] | None = Field(default=None, min_length=1)
    """Answers of the first, second, … trial of a case."""
    cases: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Case id → answer, or a list: answers by trial; in a world, actions by step."""
    actions: list[Any] | None = Field(default=None, min_length=1)
    """In worlds: the actions of the first, second, … step."""
    script: str | None = Field(default=None, min_length=1)
    """`package.module:function`: a generator that yields actions and is sent the next turn, or a
    function called with each turn. It may take `truth`, and `options` by name.
    """
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Additional arguments of the script."""
    repeat: bool = True
    """Restart the list when the answers run out; otherwise that is an error."""
    base_dir: Path | None = Field(default=None, exclude=True)
    """Base folder of import paths: the suite's folder."""

    @model_validator(mode="after")
    def _check_options(self) -> ScriptedAgentConfig:
        empty = [case for case, answers in self.cases.items() if answers == []]
        if empty:
            raise ValueError(f"no scripted answer for case {empty[0]!r}")
        if self.options and self.script is None:
            raise ValueError("`options` needs a `script`")
        if self.script is not None and self.actions is not None:
            raise ValueError("`script` and `actions` exclude each other; give one of them")
        return self

    @property
    def uses_solution(self) -> bool:
        """Return whether no script is set, so that the scenario's solution is used."""
        return not (self.replies or self.cases or self.actions or self.script)

    @cached_property
    def loaded(self) -> Any:
        """Return the script's function, imported once."""
        assert self.script is not None
        return load_object(self.script, self.base_dir)

    @property
    def observes(self) -> tuple[Observable, ...]:
        """Return everything: a script is the solution itself."""
        return EVERYTHING

    def create(self) -> Agent:
        """Create an agent that reads the script."""
        return ScriptedAgent(self)


class ScriptedAgent:
    """Scripted agent. The answer depends on the trial number, not on the execution order."""

    def __init__(self, config: ScriptedAgentConfig) -> None:
        self._config = config
        self._truth: Mapping[str, Any] = {}
        self._course: Generator[Any, Any, Any] | None = None

    @property
    def uses_solution(self) -> bool:
        """Return whether the scenario's own solution is used."""
        return self._config.uses_solution

    def set_truth(self, truth: Mapping[str, Any]) -> None:
        """Set the scenario's truth, which a reference script may use. No other kind gets it."""
        self._truth = truth

    async def run(self, request: AgentRequest) -> AgentReply:
        """Return the scripted answer for this case, trial and step."""
        config = self._config
        if request.case not in config.cases and config.script is not None:
            return as_reply(await threads.run(self._next_action, request))
        if isinstance(request, ActionTurn):
            return as_reply(
                self._answer_at(_course(config, request), request.step, request, "step")
            )
        answers = config.cases.get(request.case, config.replies)
        if answers is None:
            raise _no_answer_error(request)
        return as_reply(self._answer_at(_as_list(answers), request.index, request, "trial"))

    def _answer_at(self, answers: list[Any], at: int, request: AgentRequest, word: str) -> Any:
        # An error instead of a guess: a script that is too short is a mistake in the suite.
        if at >= len(answers) and not self._config.repeat:
            raise AgentError(
                f"only {len(answers)} answers are scripted for case {request.case!r}, "
                f"and this is {word} {at + 1}",
                category="",
            )
        return answers[at % len(answers)]

    def _next_action(self, request: AgentRequest) -> Any:
        """Return the next action of the script."""
        config = self._config
        if self._course is not None:
            try:
                # `yield from` over a list takes no sent values: find what the generator waits in.
                inner: Any = self._course
                while inspect.isgenerator(inner):
                    inner = inner.gi_yieldfrom
                if inner is None or hasattr(inner, "send"):
                    return self._course.send(request)
                return next(self._course)
            except StopIteration:
                raise _exhausted_error(config, request) from None
        function = config.loaded
        truth = {"truth": self._truth} if "truth" in inspect.signature(function).parameters else {}
        value = function(request, **truth, **config.options)
        if not inspect.isgenerator(value):
            return value
        self._course = cast("Generator[Any, Any, Any]", value)
        try:
            return next(self._course)
        except StopIteration:
            raise _exhausted_error(config, request) from None


def _course(config: ScriptedAgentConfig, turn: ActionTurn) -> list[Any]:
    """Return the actions of an episode: those of the case, of all cases, or this trial's reply."""
    answers = config.cases.get(turn.case, config.actions)
    if answers is None and config.replies is not None:
        answers = config.replies[turn.index % len(config.replies)]
    if answers is None:
        raise _no_answer_error(turn)
    return _as_list(answers)


def _as_list(answers: Any) -> list[Any]:
    return cast("list[Any]", answers) if isinstance(answers, list) else [answers]


def _no_answer_error(request: AgentRequest) -> AgentError:
    return AgentError(
        f"no scripted answer for case {request.case!r}",
        category="",
        hint="add it under `cases`; without a script only scenarios with "
        "their own `solution` can be played",
    )


def _exhausted_error(config: ScriptedAgentConfig, request: AgentRequest) -> AgentError:
    step = f" at step {request.step}" if isinstance(request, ActionTurn) else ""
    message = f"the script {config.script} ended{step}, before the episode did"
    return AgentError(message, category="")


# -- human ---------------------------------------------------------------------------------------


class HumanAgentConfig(AgentConfig):
    """Ask a person at the terminal."""

    kind: Literal["human"] = "human"
    keep_dir: Path | None = None
    """Folder of unfinished episodes; default `$XDG_STATE_HOME/proctor/human`."""
    participant: str | None = Field(default=None, min_length=1, max_length=200)
    """Name or code of the person, recorded with the run and in each trace."""

    @property
    def observes(self) -> tuple[Observable, ...]:
        """Return everything: a person has no tools and no model."""
        return EVERYTHING

    def create(self) -> Agent:
        """Create an agent that asks at the terminal."""
        return HumanAgent(self.keep_dir, self.participant)

    def version(self) -> dict[str, Any]:
        """Return the person's name: a different person is a different agent."""
        return {} if self.participant is None else {"participant": self.participant}


class HumanAgent:
    """Human agent: one question at a time, even when several trials run in parallel."""

    looks = True
    """Request the text rendering of the world, if it has one."""

    def __init__(self, keep_dir: Path | None = None, participant: str | None = None) -> None:
        self._keep_dir = keep_dir
        self._participant = participant
        self._saved: SavedMoves | None = None

    async def run(self, request: AgentRequest) -> AgentReply:
        """Show the input and read the answer; in a world, resume an unfinished episode."""
        if self._participant is not None and (trace := current_trace()) is not None:
            trace.metadata["participant"] = self._participant
        if not isinstance(request, ActionTurn):
            return as_reply(await threads.run(ask_person, request))
        if self._saved is None:
            self._saved = SavedMoves(self._keep_dir, request, self._participant)
            if self._saved.moves:
                await threads.run(offer_to_resume, self._saved)
        before = self._saved.again(request) if request.error is None else None
        if before is not None:
            return as_reply(before.action)
        action = await threads.run(ask_person, request)
        self._saved.add(request, action)
        return as_reply(action)

    async def ended(self, outcome: Any) -> None:
        """Delete the saved moves: the episode is over."""
        if self._saved is not None:
            self._saved.forget()
        score = "no score" if outcome.score is None else f"score {outcome.score:.3g}"
        text = f"── over after {outcome.steps} steps ({outcome.ended}): {score}"
        await threads.run(show_person, f"{text}; {outcome.reason}".rstrip("; "))


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
            text = shown(action) if is_call(action) else as_text(action)
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
            f"{key}: {as_text(turn.last[key])}" for key in ("reward", "info") if key in turn.last
        ]
    if turn.picture is not None:
        parts.append(turn.picture)
    parts.append(_text(turn.observation))
    return "\n".join(parts)


def _text(value: Any) -> str:
    """Return a value as readable text: its only text, or indented JSON."""
    if not isinstance(value, Mapping):
        return as_text(value)
    plain: Any = {k: v for k, v in cast("Mapping[str, Any]", value).items() if k not in ACTION_KEYS}
    texts = list(plain.values())
    if len(texts) == 1 and isinstance(texts[0], str):
        return texts[0]
    return msgspec.json.format(msgspec.json.encode(plain, enc_hook=str), indent=2).decode()

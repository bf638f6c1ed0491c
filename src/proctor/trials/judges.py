"""From the judges a suite and the settings name to judges that can be asked.

Making one costs nothing: its models are reached, and their clients imported, at the first question.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from proctor.checks.judge import Judge
from proctor.checks.judge_cache import JudgeCache, default_cache_folder
from proctor.checks.judging import DEFAULT_JUDGE
from proctor.llm.base import ClosingModel
from proctor.llm.prices import PriceTable
from proctor.llm.providers import get_model

if TYPE_CHECKING:
    from proctor.spec import JudgeConfig, Settings, Suite


def judges_for(
    suite: Suite, settings: Settings, prices: PriceTable | None = None
) -> dict[str, Judge]:
    """Every judge a suite may ask, by name; that of the settings where it has no default."""
    default = suite.judge or settings.judge
    configs = {**({} if default is None else {DEFAULT_JUDGE: default}), **suite.judges}
    return {name: _judge(config, prices) for name, config in configs.items()}


def _judge(config: JudgeConfig, prices: PriceTable | None) -> Judge:
    models = [
        get_model(name, base_url=config.base_url, api_key_env=config.api_key_env, prices=prices)
        for name in config.models
    ]
    cache = JudgeCache(default_cache_folder()) if config.cache else None
    return Judge(models, settings=config.settings, cache=cache)


@asynccontextmanager
async def closing(judges: Mapping[str, Judge]) -> AsyncGenerator[None]:
    """Close the connections of judges at the end, in the event loop they were opened in."""
    try:
        yield
    finally:
        for judge in judges.values():
            for model in judge.models:
                if isinstance(model, ClosingModel):
                    await model.aclose()

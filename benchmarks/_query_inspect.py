"""A folder of Inspect logs, and its data-frame functions over them; run by benchmarks/query.py.

python benchmarks/_query_inspect.py make FOLDER LOGS SAMPLES
python benchmarks/_query_inspect.py time FOLDER          prints {"wall": …, "cpu": …, "rows": …}
"""

import json
import sys
import time
from pathlib import Path


def make(folder: Path, logs: int, samples: int) -> None:
    """Write real logs: copies of one evaluation under other ids, written by the package."""
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.log import write_eval_log
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import includes
    from inspect_ai.solver import Generate, Solver, TaskState, solver

    @solver
    def answering() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            state.output = ModelOutput.from_content("mockllm/model", f"word {state.sample_id}")
            return state

        return solve

    cases = [
        Sample(id=f"case-{i:03d}", input=f"word {i}", target=str(i % 7), metadata={"level": i % 3})
        for i in range(samples)
    ]
    task = Task(dataset=cases, solver=answering(), scorer=includes(), name="words")
    (log,) = evaluate(task, model="mockllm/model", display="none", log_dir=str(folder / "made"))
    assert log.samples is not None
    for number in range(logs):
        log.eval.eval_id = f"eval-{number:03d}"
        log.eval.run_id = f"run-{number:03d}"
        for at, sample in enumerate(log.samples):
            sample.uuid = f"{number:03d}-{at:03d}"
        write_eval_log(log, str(folder / "logs" / f"{number:03d}.eval"))


def time_frames(folder: Path) -> None:
    """Return the mean score by task with `samples_df`, as a user of Inspect would."""
    from inspect_ai.analysis import samples_df

    wall, cpu = time.perf_counter(), time.process_time()
    frame = samples_df(str(folder / "logs"), quiet=True)
    means = (frame["score_includes"] == "C").groupby(frame["eval_id"]).mean()
    took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    print(json.dumps({**took, "rows": len(frame), "groups": len(means)}))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        time_frames(Path(sys.argv[2]))

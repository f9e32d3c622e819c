"""Writes docs/run-directory.md from the schemas: ``python -m posttrain.rundir.reference [FILE]``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from posttrain.rundir.schema import SCALARS, SEGMENTS, TOKENS, Column

DEFAULT_PATH = Path("docs/run-directory.md")

_BEFORE = """\
# The run directory

Everything a run leaves behind is in one directory, in formats that any tool reads. It is made whole or not at all:
`run.json` is written last. This page is generated (`python -m posttrain.rundir.reference`).

| Path | What it is |
|---|---|
| `run.json` | what the run is: settings with reasons, policy-identity table, versions, seed, machine, attempts |
| `metrics.jsonl` | one line per step and phase |
| `engine.jsonl` | engine, trainer and machine, once a second |
| `findings.jsonl` | what the detectors said while the run was training |
| `trajectories/step_000012.parquet` | every trajectory of the training batch of step 12 |
| `evaluation/step_000012_NAME.parquet` | every trajectory of an evaluation after step 12 |
| `evaluation/summary.json` | the comparison of base and trained model |
| `checkpoints/step_000012/` | complete checkpoints, each with a manifest of sizes and SHA-256 sums |
| `tokenizer.json` | the tokenizer, by which a report shows the text of single tokens |
| `model/` | the trained model in Hugging Face format, with tokenizer and chat template |
| `journal.sqlite` | the life of every task and group; what exact resume rests on |
| `tensorboard/` | event files, if this tracker is on |

A run on [given rows](how-to/preferences.md) samples nothing: it has no `trajectories/`, `engine.jsonl` and
`journal.sqlite`, and these besides:

| Path | What it is |
|---|---|
| `evaluation/held_out_000012.json` | what the held-out rows said after step 12, row by row |
| `reference_logprobs.safetensors` | log-probs of the rows under the initial weights, computed once |

The parent of [stages](how-to/stages.md) holds one run directory for each, such as `01-sft/`, and `stages.json` with
plan, lineage and scores.

`step` counts batches consumed, `policy_version` optimizer steps applied. `attempt` counts the processes that worked
on the run, from 1; when a run is resumed, work after the checkpoint is done again under a higher attempt.

## run.json

| Key | What it holds |
|---|---|
| `schema_version` | 1 |
| `name`, `seed`, `created` | name, seed of all random streams, start in seconds since the epoch |
| `settings` | the resolved settings tree |
| `choices` | every choice made for you: `setting`, `value`, `reason` |
| `plan` | `device`, `threads`, `compute_dtype`, `master_dtype`, `micro_batch_tokens`; a resumed run keeps it |
| `policy_identity` | one row per optimisation: `optimisation`, `on`, `sampled_by` (the policy that really sampled), \
`logprob_trusted`, `same_objective` (the advantage still means the same), `corrected_by` |
| `versions` | installed packages that can change a result |
| `attempts` | per process: `attempt`, `started`, `ended`, `outcome`, `detail`, `resumed_from_step`, `machine` |
| `facts` | further facts, such as parameter counts and bytes per model copy |

An outcome is `finished`, `interrupted`, `stopped` (by a detector) or `failed`. `running` with no process behind it
means that the process was killed.

## metrics.jsonl

Strict JSON, one object a line, only ever appended to:

```json
{"step": 12, "policy_version": 12, "attempt": 1, "time": 1767225600.0, "phase": "train",
 "values": {"reward/mean": 0.41, "policy/loss": null}, "counts": {"reward/mean": 128}, "nonfinite": ["policy/loss"]}
```

`values` are described in [metrics.md](metrics.md). A value that was NaN or infinite is `null`, and its name is in
`nonfinite`. `counts` says how many observations a value summarises, where that is known. To read a resumed run, take
for each step and phase the line of the highest attempt, and leave out lines of earlier attempts after the step that
the later one continued from (`resumed_from_step` in `run.json`); `posttrain.rundir.metrics.read_metrics` does.
A run killed while it wrote can leave one line cut off.

## engine.jsonl

One object about every second; rates are over the time since the line before, `null` means not known (never 0).

| Key | What it holds |
|---|---|
| `time`, `attempt`, `phase` | seconds since the epoch, process, what the run was doing |
| `generated_tokens_per_second` | tokens sampled by the engine |
| `trained_tokens_per_second` | tokens trained |
| `running`, `waiting`, `preempted` | requests decoded, requests waiting, and requests put back since start |
| `kv_bytes_used`, `kv_bytes_limit` | keys and values: what running requests take, and what may be held |
| `kv_bytes_allocated` | memory held for keys and values, used or not |
| `policy_version` | weights the engine holds |
| `cpu_share`, `memory` | this process: share of its cores (0 to 1), resident bytes |
| `device_memory`, `device_utilisation` | the accelerator: bytes allocated, share of time computing |
| `problem` | what could not be read, and why |

## findings.jsonl

One object an event, only ever appended to. It is a record of what was said at the time; `posttrain doctor RUN` judges
the whole run anew.

| Key | What it holds |
|---|---|
| `time`, `attempt`, `step` | seconds since the epoch, process, last step done |
| `event` | `new`, `worse`, `milder`, `over`, `gone`; `acknowledged`; `failed` |
| `finding` | of the first five: the finding as it was, with the fields that [the doctor](how-to/doctor.md) prints |
| `names` | of `acknowledged`: detectors, symptoms or causes that stop this run no more |
| `detector`, `problem` | of `failed`: a detector that could not be asked, and why |

## Trajectories

One row is one trajectory. Token columns are lists over *all* its tokens, prompt included, and all of the same
length; so `token_id[i]`, `origin[i]` and `sampler_logprob[i]` belong together. A redone step replaces its file. Later
versions may add nullable columns; none is renamed or dropped.

```sql
-- duckdb: mean reward and sampled tokens by finish reason
SELECT finish_reason, avg(reward), avg(len(list_filter(origin, o -> o = 1)))
FROM 'runs/NAME/trajectories/*.parquet' GROUP BY 1;
```

```python
from pathlib import Path
from posttrain.rundir.trajectories import read_trajectories

trajectories = read_trajectories(Path("runs/NAME/trajectories/step_000012.parquet"))
```
"""

_AFTER = """
`trainer_logprob` is the policy before the first update on the batch, so that its difference from `sampler_logprob`
shows how far sampler and trainer are the same policy. Log-probs are of the distribution really sampled from:
tempered, and renormalised over the support where sampling was cut.
"""


def run_directory_reference() -> str:
    """The whole page as Markdown."""
    tables = (
        ("One value a trajectory", SCALARS),
        ("One value a segment (tokens of one origin under one policy version)", SEGMENTS),
        ("One value a token", TOKENS),
    )
    return "\n".join([_BEFORE, *(_table(heading, columns) for heading, columns in tables), _AFTER.strip(), ""])


def _table(heading: str, columns: Sequence[Column]) -> str:
    rows = [f"| `{c.name}` | {_kind(c)} | {'yes' if c.nullable else 'no'} | {_cell(c.meaning)} |" for c in columns]
    return "\n".join(
        [f"### {heading}", "", "| Column | Type | May be null | Meaning |", "|---|---|---|---|", *rows, ""]
    )


def _kind(column: Column) -> str:
    return re.sub(r"list<\w+: (\w+)>", r"list<\1>", str(column.kind))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> None:
    """Write the page to the given file, or to docs/run-directory.md."""
    path = Path(arguments[0]) if arguments else DEFAULT_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(run_directory_reference(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

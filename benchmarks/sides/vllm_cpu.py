"""vLLM on a CPU, offline and eager, token ids in, ids and log-probs out. Runs in vLLM's own interpreter."""

from __future__ import annotations

from typing import Any

from harness.worker import Action, serve


def load(spec: dict[str, Any]) -> dict[str, Action]:
    """The engine, with room for all requests at once and no text to make."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=spec["model"],
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=spec["running"],
        disable_log_stats=True,
    )

    def rollout(command: dict[str, Any]) -> dict[str, Any]:
        sampling = [
            SamplingParams(
                temperature=1.0, max_tokens=spec["new_tokens"], ignore_eos=True, logprobs=0, n=n, detokenize=False
            )
            for _, n in command["groups"]
        ]
        prompts = [{"prompt_token_ids": ids} for ids, _ in command["groups"]]
        results = llm.generate(prompts, sampling, use_tqdm=False)
        outputs = [output for result in results for output in result.outputs]
        assert all(len(o.logprobs) == len(o.token_ids) for o in outputs)
        return {"tokens": sum(len(o.token_ids) for o in outputs)}

    return {"rollout": rollout}


if __name__ == "__main__":
    serve(load)

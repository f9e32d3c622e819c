"""A second implementation of the policy-update formulas, in plain numpy: the oracle the objectives are held to.

Nothing here knows the product: no torch, no `posttrain`. Every function is written from the published formula with
loops over rows and tokens, so that it reads like the formula and shares no trick with the code it checks.

How to use it as an oracle
    batch = Batch.from_golden(json_inputs)                 # or Batch(logp_new=..., mask=..., ...)
    loss, grad = evaluate(gspo_token(batch), batch)        # float, (S, T)

- `arrays`        the batch, the aggregators, finite differences
- `advantages`    outcome advantages (S,) and token advantages (S, T)
- `corrections`   weights for the gap between sampler and trainer, KL estimators
- `token_losses`  one number per token, from `base` and `moved` log-probs
- `rows`          whole methods: `row(batch, ...)` gives a `Loss`
- `critic`        GAE, value loss, explained variance
- `preference`, `distillation`  the offline and the teacher methods

A `Loss` is a function `(base, moved) -> float` of two log-prob arrays. Everything a formula detaches (weights, masks,
chosen tokens) is computed from `base`; everything that carries gradient from `moved`. `evaluate` differentiates in
`moved` with `base` held still, which is what a stop-gradient means; putting the same changed array in both places shows
what the value alone would do.

Shapes: S rows, T padded tokens, float64 throughout. `mask` is boolean (S, T); where it is False an array may hold
anything, NaN included. A row without a True counts nowhere: not in group statistics, not in any denominator.
"""

"""The native engine: continuous batching over transformers modules, token ids in, ids and log-probs out."""

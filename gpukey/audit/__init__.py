"""Does an engine reuse KV across requests whose token ids match and whose embeddings do not? Ask it: `gpukey audit`."""

"""A router process: which worker holds the longest prefix? Without torch; needs numpy and blake3. Runs anywhere:

    GPUKEY_SECRET=$(gpukey keygen) python examples/router.py

Workers announce themselves with `hello()` and report the block keys that they hold; the router computes the same keys from token ids and
fingerprints. A worker with another secret, model or layout is turned away at start instead of never being hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpukey import EmbeddingSpan, Root, Secret
from gpukey.integrations.stores import StoreKeys

ROOT = Root(
    model="demo", dtype="bfloat16", weights_version="1", config=b"digest of the model's config", kv_layout="demo tp1"
)


class Router:
    """Workers by name, each with the set of keys of the blocks that it holds."""

    def __init__(self, store: StoreKeys) -> None:
        self.store = store
        self.held: dict[str, set[bytes]] = {}

    def join(self, worker: str, hello: Mapping[str, str]) -> None:
        """ValueError for a worker whose keys could not mean what ours mean."""
        self.store.check(hello)
        self.held[worker] = set()

    def route(self, token_ids: Sequence[int], embeds: Sequence[EmbeddingSpan] = ()) -> tuple[str, int]:
        """The worker with the longest prefix, and its length in tokens."""
        keys = self.store.chain(token_ids, embeds).keys

        def prefix(worker: str) -> int:
            return next((i for i, key in enumerate(keys) if key not in self.held[worker]), len(keys))

        best = max(self.held, key=prefix)
        return best, prefix(best) * self.store.block_size


def main() -> None:
    store = StoreKeys(ROOT, block_size=16, secret=Secret.from_env())
    router = Router(store)
    for worker in ("a", "b"):
        router.join(worker, StoreKeys(ROOT, block_size=16, secret=Secret.from_env()).hello())
    ids, cat, dog = list(range(96)), [b"c" * 16] * 40, [b"d" * 16] * 40
    router.held["a"].update(store.chain(ids, [EmbeddingSpan(32, cat)]).keys)
    router.held["b"].update(store.chain(ids, [EmbeddingSpan(32, dog)]).keys)
    print("the cat again:", router.route(ids, [EmbeddingSpan(32, cat)]))
    print("the dog again:", router.route(ids, [EmbeddingSpan(32, dog)]))
    print("no image:     ", router.route(ids))
    try:
        router.join("c", StoreKeys(ROOT.replace(weights_version="2"), block_size=16, secret=Secret.from_env()).hello())
    except ValueError as error:
        print("turned away:  ", error)


if __name__ == "__main__":
    main()

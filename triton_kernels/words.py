"""Chaining values as tuples of 8 tensors: loading, choosing, moving between lanes, storing, and a stack of them."""

# ruff: noqa: RET505, RUF005 - Triton's language has neither early returns around other types nor unpacking in a tuple.

import triton
import triton.language as tl


@triton.jit
def load_key(key):
    """8 words, scalars; `key` is 32 bytes on a multiple of 4."""
    word = key.to(tl.pointer_type(tl.uint32))
    return (
        tl.load(word), tl.load(word + 1), tl.load(word + 2), tl.load(word + 3),
        tl.load(word + 4), tl.load(word + 5), tl.load(word + 6), tl.load(word + 7),
    )  # fmt: skip


@triton.jit
def splat(key, lanes: tl.constexpr):
    k0, k1, k2, k3, k4, k5, k6, k7 = key
    zero = tl.zeros((lanes,), tl.uint32)
    return zero + k0, zero + k1, zero + k2, zero + k3, zero + k4, zero + k5, zero + k6, zero + k7


@triton.jit
def choose(condition, yes, no):
    a0, a1, a2, a3, a4, a5, a6, a7 = yes
    b0, b1, b2, b3, b4, b5, b6, b7 = no
    return (
        tl.where(condition, a0, b0), tl.where(condition, a1, b1), tl.where(condition, a2, b2), tl.where(condition, a3, b3),
        tl.where(condition, a4, b4), tl.where(condition, a5, b5), tl.where(condition, a6, b6), tl.where(condition, a7, b7),
    )  # fmt: skip


@triton.jit
def pick(cv, index):
    c0, c1, c2, c3, c4, c5, c6, c7 = cv
    return (
        tl.gather(c0, index, 0), tl.gather(c1, index, 0), tl.gather(c2, index, 0), tl.gather(c3, index, 0),
        tl.gather(c4, index, 0), tl.gather(c5, index, 0), tl.gather(c6, index, 0), tl.gather(c7, index, 0),
    )  # fmt: skip


@triton.jit
def join_words(w0, w1, w2, w3, LANES: tl.constexpr):
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (LANES, 4))


@triton.jit
def store_words(at, cv, mask, LANES: tl.constexpr, WORDS: tl.constexpr):
    """The first WORDS words of `cv` to [LANES] pointers to uint32."""
    c0, c1, c2, c3, c4, c5, c6, c7 = cv
    to = at[:, None] + tl.arange(0, 4)[None, :]
    tl.store(to, join_words(c0, c1, c2, c3, LANES), mask=mask[:, None])
    if WORDS == 8:
        tl.store(to + 4, join_words(c4, c5, c6, c7, LANES), mask=mask[:, None])


@triton.jit
def new_stack(cv, LEVELS: tl.constexpr):
    """A stack of LEVELS chaining values, a tuple; what it holds at first is never read."""
    if LEVELS == 1:
        return (cv,)
    else:
        return new_stack(cv, LEVELS - 1) + (cv,)


@triton.jit
def stack_get(stack, index, LEVELS: tl.constexpr):
    cv = stack[0]
    for i in tl.static_range(1, LEVELS):
        cv = choose(index == i, stack[i], cv)
    return cv


@triton.jit
def stack_put(stack, index, cv, LEVELS: tl.constexpr):
    if LEVELS == 1:
        return (choose(index == 0, cv, stack[0]),)
    else:
        return stack_put(stack, index, cv, LEVELS - 1) + (choose(index == LEVELS - 1, cv, stack[LEVELS - 1]),)

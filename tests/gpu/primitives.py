"""Tiny kernels around each primitive of kernels_cu/ptx, and what NumPy says that they compute.

The same text runs on a GPU and in the emulator. mma's is in record_primitives.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import record_primitives
from cupy_flash.compile import OPTIONS
from emulation import EmulatedKernel, Region, build
from tiny_kernels import PARAMS, kernel_text, primitives

Words = np.ndarray[Any, Any]
LANES = np.arange(32)
# The lane that passes the address of a row, so that no row is its lane's own.
ROW_LANES = (LANES * 5 + 3) % 32


@dataclass(frozen=True)
class Primitive:
    """A body over uint32 words, one warp a block, and its definition.

    Attributes
    ----------
    body : str
        Reads `words_in` words of x and writes `words_out` words of y per block.
    x : ndarray
        All blocks' words.
    definition : callable
        Computes all of y.
    floats : bool
        y is float32, in which any NaN is as good as any other.
    """

    body: str
    x: Words
    words_in: int
    words_out: int
    definition: Callable[[Words], Words]
    floats: bool = False

    @property
    def grid(self) -> int:
        return self.x.size // self.words_in

    @property
    def text(self) -> str:
        return kernel_text(self.body, np.uint32, primitives())

    def expected(self) -> Words:
        return self.one_nan(self.definition(self.x))

    def one_nan(self, words: Words) -> Words:
        """Return y with the same NaN for all of them if it is float32."""
        if not self.floats:
            return words
        return np.where(np.isnan(words.view(np.float32)), np.uint32(0x7FFFFFFF), words)


SHARED_BYTES = 512
LOAD_SHARED_MEMORY = """
for (int j = 0; j < 4; ++j) sm[32 * j + i] = load_global(p.x + 128 * blockIdx.x + 32 * j + i);
__syncthreads();
const unsigned shared = shared_address(sm);
"""
STORE_WORDS = """
for (int j = 0; j < 4; ++j) store_global(p.y + 128 * blockIdx.x + 4 * i + j, word[j]);
"""
MATRIX = """
unsigned word[4];
load_matrixFORM(shared + 16 * ((i * 5 + 3) % 32), word);
"""
# Half of the words are there before and after, so that bytes beyond those of a copy would show.
COPY_ASYNC = """
const unsigned shared = shared_address(sm);
store_shared(shared + 16 * i, Words4{{~0u, ~0u, ~0u, ~0u}});
const unsigned* source = p.x + 128 * blockIdx.x + 4 * i;
const bool present = (i + blockIdx.x) % 3 > 0;
if (i % 2) copy_async<SIZE>(shared + 16 * i, present ? source : nullptr, present);
commit_async();
wait_async<0>();
__syncthreads();
unsigned word[4];
for (int j = 0; j < 4; ++j) word[j] = sm[4 * i + j];
"""
VECTORS = """
Words4 words = load_shared<Words4>(shared + 16 * (i ^ 5));
words.word[i % 4] += 1;
__syncthreads();
store_shared(shared_address(sm + 4 * ((i + 7) % 32)), words);
__syncthreads();
unsigned word[4];
for (int j = 0; j < 4; ++j) word[j] = sm[4 * i + j];
"""
PACK = """
const unsigned* pair = p.x + 64 * blockIdx.x + 2 * i;
const float low = __uint_as_float(load_global(pair));
const float high = __uint_as_float(load_global(pair + 1));
store_global(p.y + 32 * blockIdx.x + i, pack_pair<TYPE>(low, high));
"""
ONE_WORD = """
const unsigned word = load_global(p.x + 32 * blockIdx.x + i);
store_global(p.y + 32 * blockIdx.x + i, static_cast<unsigned>(EXPRESSION));
"""


def random_words(count: int) -> Words:
    return np.random.default_rng(0).integers(0, 2**32, count, np.uint32)


def padded(words: Words, multiple: int) -> Words:
    return np.append(words, np.zeros(-words.size % multiple, np.uint32))


def float_edges() -> Words:
    """Return bits of float32 numbers on both sides of where 16-bit formats round.

    All numbers of both formats, the ones halfway between neighbours, the next float32 numbers to
    either side of both, all with both signs; infinities, NaNs, and any bits.
    """
    half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    halfway = (half[:-1].view(np.float32) + half[1:].view(np.float32)) / 2
    bfloat = np.arange(0x7F80, dtype=np.uint32)[::31] << 16
    points = np.concatenate([half, halfway.view(np.uint32), bfloat, bfloat | 0x8000])
    points = np.append(points, np.uint32(0x477FF000))  # where rounding to float16 overflows
    near = np.concatenate([points, points + 1, points[points > 0] - 1])
    nans = np.array([0x7F800000, 0x7F800001, 0x7FC00000, 0x7FC12345, 0x7FFFFFFF], np.uint32)
    positive = np.unique(np.concatenate([near, nans]))
    return padded(np.concatenate([positive, positive | 2**31, random_words(4096)]), 64)


def rounded(words: Words, dtype: Any) -> Words:
    """Return the bits of float32 numbers in a 16-bit format; NaNs become 0x7fff."""
    values = words.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        bits = values.astype(dtype).view(np.uint16).astype(np.uint32)
    return np.where(np.isnan(values), np.uint32(0x7FFF), bits)


def tf32_edges() -> Words:
    """Return bits of float32 numbers on both sides of where TF32 rounds, NaNs and infinities."""
    points = np.arange(1 << 19, dtype=np.uint32)[::61] << 13
    halfway = points | 0x1000
    near = [points, halfway, halfway - 1, halfway + 1]
    ends = np.array([0x7F7FFFFF, 0x7F7FF000, 0x7F7FEFFF, 0x7F800000, 0x7F800001, 1], np.uint32)
    return padded(np.concatenate([*near, ends, ends | 2**31, float_edges()[::7]]), 32)


def nearest_tf32(words: Words) -> Words:
    """Return bits of the nearest TF32 numbers, of two as near the larger one."""
    with np.errstate(invalid="ignore"):
        x = words.view(np.float32).astype(np.float64)
    _, exponent = np.frexp(np.where(np.isfinite(x), x, 1))
    unit = np.ldexp(1.0, np.maximum(exponent, -125) - 11)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.copysign(np.floor(np.abs(x) / unit + 0.5) * unit, x)
        return np.where(np.isfinite(x), near, x).astype(np.float32).view(np.uint32)


def packed(dtype: Any) -> Callable[[Words], Words]:
    return lambda x: rounded(x[::2], dtype) | rounded(x[1::2], dtype) << 16


def matrices(x: Words) -> Words:
    """Return the four 8 x 8 matrices of each block, as lanes' addresses order the rows."""
    return x.view(np.uint16).reshape(-1, 32, 8)[:, ROW_LANES].reshape(-1, 4, 8, 8)


def fragments(matrices: Words) -> Words:
    """Return lane t's pairs (t / 4, t % 4 * 2) of each matrix: blocks x 32 x 4 words."""
    pairs = np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, 4, 32)
    return pairs.swapaxes(1, 2).reshape(-1)


def copied(size: int) -> Callable[[Words], Words]:
    """Return what cp.async of so many bytes leaves of words that were all ones."""

    def leave(x: Words) -> Words:
        words = x.reshape(-1, 32, 4)
        present = (LANES[:, None] + np.arange(len(words))[:, None, None]) % 3 > 0
        reached = (LANES[:, None] % 2 == 1) & (np.arange(4) < size // 4)
        return np.where(reached, np.where(present, words, 0), ~np.uint32(0)).reshape(-1)

    return leave


def moved(x: Words) -> Words:
    words = x.reshape(-1, 32, 4)[:, LANES ^ 5]
    words[:, LANES, LANES % 4] += np.uint32(1)
    return np.roll(words, 7, axis=1).reshape(-1)


def to_float(x: Words) -> Words:
    return x.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)


def shuffled(lanes: Words) -> Callable[[Words], Words]:
    return lambda x: x.reshape(-1, 32)[:, lanes % 32].reshape(-1)


def one_word(
    expression: str, x: Words, definition: Callable[[Words], Words], floats: bool = False
) -> Primitive:
    body = ONE_WORD.replace("EXPRESSION", expression)
    return Primitive(body, padded(x, 32), 32, 32, definition, floats)


def matrix(form: str, definition: Callable[[Words], Words]) -> Primitive:
    body = LOAD_SHARED_MEMORY + MATRIX.replace("FORM", form) + STORE_WORDS
    return Primitive(body, random_words(128 * 8), 128, 128, definition)


def powers(x: Words) -> Words:
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp2(x.view(np.float32).astype(np.float64)).astype(np.float32)
    return np.where(exact < np.finfo(np.float32).tiny, 0, exact).view(np.uint32)


def exponents() -> Words:
    x = np.linspace(-160, 130, 4096, dtype=np.float32)
    x[:7] = -np.inf, np.inf, np.nan, -0.0, 2.0**-140, -126, -127
    return x.view(np.uint32)


def natural_powers(x: Words) -> Words:
    """Return e^x of float64 numbers, the nearest ones; 0 where powers are below 2^-1022."""
    with np.errstate(under="ignore"):
        exact = np.exp(x.view(np.float64).astype(np.longdouble)).astype(np.float64)
    return np.where(exact < np.finfo(np.float64).tiny, 0, exact).view(np.uint32)


def below_zero() -> Words:
    """Return float64 numbers that a softmax may take the exponential of, small and large."""
    rng = np.random.default_rng(0)
    x = -np.concatenate(
        [rng.uniform(0, 708, 4000), rng.uniform(0, 1, 4000), 10 ** rng.uniform(-320, 3, 4000)]
    )
    edges = [-0.0, 0.0, -np.inf, np.nan, -np.nan, -1e300, -708.395, -708.397, -745.2]
    return np.append(x, edges).view(np.uint32)


# Not exact: the definition is the nearest float64 number.
EXPONENTIAL = Primitive(
    """
    const unsigned* x = p.x + 64 * blockIdx.x + 2 * i;
    const unsigned long long high = load_global(x + 1);
    const long long bits = static_cast<long long>(high << 32 | load_global(x));
    const long long power = __double_as_longlong(exponential(__longlong_as_double(bits)));
    store_global(p.y + 64 * blockIdx.x + 2 * i, static_cast<unsigned>(power));
    store_global(p.y + 64 * blockIdx.x + 2 * i + 1, static_cast<unsigned>(power >> 32));
    """,
    padded(below_zero(), 64),
    64,
    64,
    natural_powers,
)
# Not exact: the definition is the nearest float32 number.
EXP2 = one_word(
    "__float_as_uint(exp2_approx(__uint_as_float(word)))", exponents(), powers, floats=True
)


def arguments_of_tanh() -> Words:
    x = np.linspace(-12, 12, 1 << 16, dtype=np.float32)
    limit = np.float32(0.35)
    edges = [np.nextafter(limit, np.float32(side)) for side in (0, 1)]
    x[:10] = (*edges, limit, -limit, np.inf, -np.inf, np.nan, 2.0**-120, 88.8, 1e30)
    return x.view(np.uint32)


def tangents(x: Words) -> Words:
    return np.tanh(x.view(np.float32).astype(np.float64)).astype(np.float32).view(np.uint32)


# Not exact: the definition is the nearest float32 number.
TANGENT = one_word(
    "__float_as_uint(hyperbolic_tangent(__uint_as_float(word)))",
    arguments_of_tanh(),
    tangents,
    floats=True,
)
PRIMITIVES = {
    "load_matrix": matrix("", lambda x: fragments(matrices(x))),
    "load_matrix_transposed": matrix(
        "_transposed", lambda x: fragments(matrices(x).swapaxes(2, 3))
    ),
    "load_shared and store_shared": Primitive(
        LOAD_SHARED_MEMORY + VECTORS + STORE_WORDS, random_words(128 * 4), 128, 128, moved
    ),
    **{
        f"copy_async of {size} bytes": Primitive(
            COPY_ASYNC.replace("SIZE", str(size)) + STORE_WORDS,
            random_words(128 * 3),
            128,
            128,
            copied(size),
        )
        for size in (16, 8, 4)
    },
    "pack_pair of float16": Primitive(
        PACK.replace("TYPE", "Float16"), float_edges(), 64, 32, packed(np.float16)
    ),
    "pack_pair of bfloat16": Primitive(
        PACK.replace("TYPE", "BFloat16"), float_edges(), 64, 32, packed(ml_dtypes.bfloat16)
    ),
    "half_from_float": one_word(
        "half_from_float(__uint_as_float(word))",
        float_edges(),
        lambda x: rounded(x, np.float16),
    ),
    "float_from_half": one_word(
        "__float_as_uint(float_from_half(static_cast<unsigned short>(word)))",
        np.arange(2**16, dtype=np.uint32),
        to_float,
        floats=True,
    ),
    "rounded_tf32": one_word(
        "rounded_tf32(__uint_as_float(word))", tf32_edges(), nearest_tf32, floats=True
    ),
    "shuffle": one_word(
        "__shfl_sync(0xffffffffu, word, i * 7 + 3)",
        random_words(256),
        shuffled(LANES * 7 + 3),
    ),
    "xor shuffle": one_word(
        "__shfl_xor_sync(0xffffffffu, word, 1) + 3 * __shfl_xor_sync(0xffffffffu, word, 18)",
        random_words(256),
        lambda x: shuffled(LANES ^ 1)(x) + np.uint32(3) * shuffled(LANES ^ 18)(x),
    ),
}


def emulated(primitive: Primitive, **options: int) -> Words:
    """Return y as the emulator computes it."""
    kernel = EmulatedKernel(
        build(primitive.text, "kernel", PARAMS.itemsize), "kernel", PARAMS.itemsize
    )
    # cp.async wants 16-byte alignment, which NumPy's arrays of this size needn't have.
    memory = np.empty(primitive.x.size + 4, np.uint32)
    x = memory[-memory.ctypes.data % 16 // 4 :][: primitive.x.size]
    x[:] = primitive.x
    y = np.zeros(primitive.grid * primitive.words_out, np.uint32)
    params = np.array((x.ctypes.data, y.ctypes.data, 0), PARAMS)[()]
    regions = [Region.of("x", x), Region.of("y", y, writable=True)]
    options = {"flush_subnormals": True, **options}
    kernel.launch(params, primitive.grid, 32, SHARED_BYTES, regions, **options)
    return primitive.one_nan(y)


def emulated_products(
    dtype: str, fragments: dict[str, np.ndarray[Any, Any]], **options: int
) -> np.ndarray[Any, Any]:
    """Return the accumulators after one mma, as record_primitives.products does of a GPU's."""
    text, entry = record_primitives.kernel_text(dtype)
    dtype_of_params = record_primitives.PARAMS
    kernel = EmulatedKernel(
        build(text, entry, dtype_of_params.itemsize), entry, dtype_of_params.itemsize
    )
    arrays = {name: np.ascontiguousarray(fragments[name]) for name in "abc"}
    arrays["d"] = np.zeros(arrays["c"].shape, np.float32)
    params = np.array(tuple(x.ctypes.data for x in arrays.values()), dtype_of_params)[()]
    regions = [Region.of(name, x, writable=name == "d") for name, x in arrays.items()]
    options = {"flush_subnormals": True, **options}
    kernel.launch(params, len(arrays["d"]), 32, 0, regions, **options)
    return arrays["d"]


def on_gpu(primitive: Primitive) -> Words:
    """Return y as the current GPU computes it."""
    import cupy

    x = cupy.asarray(primitive.x)
    y = cupy.zeros(primitive.grid * primitive.words_out, np.uint32)
    params = np.array((x.data.ptr, y.data.ptr, 0), PARAMS)[()]
    function = cupy.RawModule(code=primitive.text, options=OPTIONS).get_function("kernel")
    function((primitive.grid,), (32,), (params,), shared_mem=SHARED_BYTES)
    return primitive.one_nan(y.get())

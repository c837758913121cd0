# SPDX-License-Identifier: Apache-2.0
"""Draws the attention weights of one head, with its words on the axes.

usage: draw_attention.py ACTIVATIONS.safetensors RESULT.safetensors PICTURE.png

ACTIVATIONS has q and k of packed paragraphs (cu_seqlens) and their tokens; RESULT is what `froghopper attend --lse`
made of it. The weight of a word for another is exp(scale q.k - lse), lse being the library's.
"""
import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

# Head 1 of this layer has learnt whom a pronoun means: "its" is the Rabbit's, "she" is Alice. A passage that says so,
# by its first and last word.
HEAD = 1
FIRST, LAST = ("but", "when", "the", "rabbit"), ("she", "had", "never")
DTYPES = {"F16": np.float16, "F32": np.float32, "I32": np.int32, "I64": np.int64}


def read_safetensors(path):
    """The tensors by name, and the metadata."""
    content = pathlib.Path(path).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        first, last = (begin + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(content[first:last], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata


def find(tokens, words):
    """Where these words follow each other."""
    return next(i for i in range(len(tokens)) if tuple(tokens[i:i + len(words)]) == words)


def weights_of(q, k, lse, rows, keys, head):
    """exp(scale q.k - lse) for these rows and keys."""
    scores = q[rows, head].astype(np.float64) @ k[keys, head].astype(np.float64).T / np.sqrt(q.shape[-1])
    return np.exp(scores - lse[head, rows, None])


def label(token):
    return token.replace("##", "-")


def draw(weights, words, told, picture):
    """weights[i, j]: how much of word i's attention goes to word j. told: (i, j) pairs that get a note."""
    figure, axes = plt.subplots(figsize=(13, 12.4), layout="constrained")
    image = axes.imshow(weights, cmap="Purples", vmin=0, vmax=0.65, interpolation="nearest")
    places = np.arange(len(words))
    axes.set_xticks(places, words, rotation=90, fontsize=11)
    axes.set_yticks(places, words, fontsize=11)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("... looks at", fontsize=13, labelpad=8)
    axes.set_ylabel("This word ...", fontsize=13, labelpad=10)
    axes.set_xticks(places - 0.5, minor=True)
    axes.set_yticks(places - 0.5, minor=True)
    axes.grid(which="minor", color="#ebe9f0", linewidth=0.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)

    for row, column in told:
        axes.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#c24a00", linewidth=2))
        right = column < len(words) * 0.6
        axes.annotate(f"{words[row]} \N{RIGHTWARDS ARROW} {words[column]}  {weights[row, column]:.0%}", (column, row),
                      xytext=(14 if right else -14, 0), textcoords="offset points", va="center",
                      ha="left" if right else "right", fontsize=12, color="#c24a00", weight="bold",
                      bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85})
        for ticks, place in ((axes.get_yticklabels(), row), (axes.get_xticklabels(), column)):
            ticks[place].set_color("#c24a00")
            ticks[place].set_weight("bold")

    bar = figure.colorbar(image, ax=axes, shrink=0.4, aspect=30, pad=0.02)
    bar.set_label("share of the word's attention", fontsize=11)
    bar.ax.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1, decimals=0))
    bar.outline.set_visible(False)
    figure.suptitle("Whom does \"she\" mean?  One attention head reads Alice in Wonderland", fontsize=17,
                    weight="bold", y=1.03)
    figure.text(0.5, -0.012, "Layer 3, head 1 of the sentence encoder all-MiniLM-L6-v2. Weights "
                "exp(scale q\N{DOT OPERATOR}k - lse), lse computed by froghopper. The rest of a row goes to words "
                "outside this passage, most of it to the paragraph's start.", ha="center", fontsize=10, color="#555555")
    figure.savefig(picture, dpi=110, bbox_inches="tight", facecolor="white", pad_inches=0.25)


def main(activations, result, picture):
    tensors, metadata = read_safetensors(activations)
    lse = read_safetensors(result)[0]["lse"]
    tokens = json.loads(metadata["tokens"])
    passage = np.arange(find(tokens, FIRST), find(tokens, LAST) + len(LAST))
    weights = weights_of(tensors["q"], tensors["k"], lse, passage, passage, HEAD)

    # The strongest links of one word to another.
    far = [(i, j) for i in range(len(passage)) for j in range(len(passage)) if i != j]
    told = sorted(far, key=lambda pair: -weights[pair])[:4]
    words = [label(tokens[i]) for i in passage]
    draw(weights, words, told, picture)
    for i, j in told:
        print(f"  {words[i]:>10} looks at {words[j]} with {weights[i, j]:.0%} of its attention")
    print(f"wrote     {picture}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])

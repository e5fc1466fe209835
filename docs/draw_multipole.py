"""Draw static/multipole.png: the keys that one query attends exactly, and the centroids that stand for the others."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

CELLS, EXACT = 12, 40


def draw(path: Path) -> None:
    """Cluster keys in two dimensions, choose the near cells of one query as ``multipole`` does, and draw them."""
    rng = np.random.default_rng(3)
    middles = rng.uniform(-2.2, 2.2, size=(8, 2))
    keys = np.concatenate([middle + 0.35 * rng.normal(size=(30, 2)) for middle in middles])
    query = np.array([1.6, 0.9])
    centres = keys[rng.permutation(len(keys))[:CELLS]]
    cell = np.argmin(((keys[:, None] - centres) ** 2).sum(axis=2), axis=1)
    count = np.bincount(cell, minlength=CELLS)
    mean = np.stack([keys[cell == j].mean(axis=0) for j in range(CELLS)])
    spread = np.bincount(cell, ((keys - mean[cell]) ** 2).sum(axis=1), CELLS) / count
    order = np.argsort(-(mean @ query + np.log(spread)))
    near = order[np.cumsum(count[order]) - count[order] / 2 < EXACT]
    weight = np.exp(mean @ query) * count
    figure, ax = plt.subplots(figsize=(6.4, 5.6), layout="constrained")
    exact = np.isin(cell, near)
    ax.scatter(*keys[~exact].T, s=9, color="0.75", label="far keys")
    for j in set(range(CELLS)) - set(near):
        for key in keys[cell == j]:
            ax.plot(*np.transpose([key, mean[j]]), color="0.85", lw=0.6, zorder=0)
    far = np.array([j for j in range(CELLS) if j not in near])
    size = 40 + 400 * weight[far] / weight.max()
    ax.scatter(
        *mean[far].T,
        s=size,
        facecolor="none",
        edgecolor="C0",
        lw=1.8,
        label="centroids that stand for them (area: weight)",
    )
    ax.scatter(*keys[exact].T, s=16, color="C3", label="near keys, attended exactly")
    ax.scatter(*query, marker="*", s=220, color="black", label="query", zorder=3)
    ax.annotate("", 1.3 * query, query, arrowprops={"arrowstyle": "->", "lw": 1.2})
    ax.set(xticks=[], yticks=[], aspect="equal", title="One query: near keys exactly, centroids for the rest")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(__file__).parent / "static" / "multipole.png")

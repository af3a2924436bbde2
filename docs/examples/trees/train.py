"""Stands in for a model that you have trained: trees of LightGBM that tell whether two numbers have a positive sum."""

import sys
from pathlib import Path

import lightgbm
import numpy as np

rows = np.random.default_rng(0).uniform(-1, 1, (2000, 2)).astype(np.float32)
labels = rows.sum(axis=1) > 0
trees = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(rows, labels), 50)
folder = Path(sys.argv[1])
folder.mkdir(parents=True)
trees.save_model(folder / "model.txt")
print(f"{folder}/model.txt:", trees.num_trees(), "trees")

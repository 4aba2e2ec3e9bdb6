"""Runs an exported network without Lightning and without this project: run_exported.py FOLDER [IMAGE.npy]."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch

folder = Path(sys.argv[1])
about = json.loads((folder / "network.json").read_text(encoding="utf-8"))
# Preprocessed as about["preprocessing"] says, float32 [C, *S]; most networks want sides of a multiple of some pixels.
image = np.load(sys.argv[2] if len(sys.argv) > 2 else folder / "sample.npy")[None].astype(np.float32)
step, least = about["input"]["multiple_of"] or 1, about["input"]["smallest"]
lacking = [(0, max(least, -(-length // step) * step) - length) for length in image.shape[2:]]
padded = np.pad(image, [(0, 0), (0, 0), *lacking], mode="edge")

by_torch = torch.export.load(folder / "network.pt2").module()(torch.from_numpy(padded)).detach().numpy()
by_onnx = onnxruntime.InferenceSession(folder / "network.onnx").run(None, {"image": padded})[0]
for name, logits in {"torch.export": by_torch, "ONNX": by_onnx}.items():
    labels = logits[(0, slice(None), *map(slice, image.shape[2:]))].argmax(0)
    counts = np.bincount(labels.ravel(), minlength=len(about["classes"])).tolist()
    print(name, dict(zip(about["classes"], counts, strict=True)))
print("largest difference", np.abs(by_torch - by_onnx).max())

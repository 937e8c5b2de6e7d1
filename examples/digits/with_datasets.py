"""Hugging Face datasets on a commit: python with_datasets.py TARGET, as in python with_datasets.py digits@v1

`imagefolder` streams the images from the store, and takes the label of each from its folder. A nearest-mean classifier
is fitted to most of them and tried on the others. It needs datasets and Pillow.
"""

import sys

import numpy
from datasets import load_dataset

files = {"train": f"dsv://{sys.argv[1]}/**/*.png"}
data = load_dataset("imagefolder", data_files=files, split="train", streaming=True)
names = data.features["label"].names
held_out = []
sums = numpy.zeros((len(names), 64))
counts = numpy.zeros(len(names))
for number, row in enumerate(data.shuffle(seed=7, buffer_size=500)):
    image = numpy.asarray(row["image"], dtype=float).ravel()
    if number % 5 == 0:
        held_out.append((image, row["label"]))
    else:
        sums[row["label"]] += image
        counts[row["label"]] += 1
means = sums / counts[:, None]
right = sum(((means - image) ** 2).sum(axis=1).argmin() == label for image, label in held_out)
print(f"{int(counts.sum())} images of {len(names)} classes, accuracy {right / len(held_out):.4f}")

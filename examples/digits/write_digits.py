"""Writes scikit-learn's digits as 1,797 PNG files into a folder for each class: python write_digits.py FOLDER

It needs scikit-learn and Pillow.
"""

import pathlib
import sys

from PIL import Image
from sklearn.datasets import load_digits

root = pathlib.Path(sys.argv[1])
digits = load_digits()
for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
    folder = root / str(label)
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image * 255 / 16).astype("uint8")).save(folder / f"digit-{number:04}.png")

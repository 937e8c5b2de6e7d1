"""Write scikit-learn's digits out as 1,797 PNG files in ten class folders; runs inside the container."""

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

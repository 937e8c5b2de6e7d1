"""Fits a classifier to a folder of images that has a folder for each class: dsv run DATASET -p C=10 -- python train.py

dsv run gives the data in $DSV_DATA and the parameters in $DSV_PARAMS. The accuracy is written to
$DSV_OUT/metrics.json, where dsv run finds it. It needs scikit-learn and Pillow.
"""

import json
import os
import pathlib

import numpy
from PIL import Image
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

data, out = pathlib.Path(os.environ["DSV_DATA"]), pathlib.Path(os.environ["DSV_OUT"])
params = json.loads(os.environ["DSV_PARAMS"])
paths = sorted(data.glob("*/*.png"))
images = numpy.array([numpy.asarray(Image.open(path)).ravel() for path in paths]) / 255
labels = [path.parent.name for path in paths]
train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.3, random_state=7)
model = SVC(C=float(params["C"]), gamma="scale").fit(train_x, train_y)
accuracy = model.score(test_x, test_y)
print(f"{len(train_y)} images of {len(set(labels))} classes, accuracy {accuracy:.4f}")
metrics = {"accuracy": accuracy, "images": len(paths), "classes": len(set(labels))}
(out / "metrics.json").write_text(json.dumps(metrics))

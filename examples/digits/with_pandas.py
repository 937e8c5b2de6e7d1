"""Tables from images, and back into the dataset: python with_pandas.py TARGET, as in python with_pandas.py digits@v1

It reads the images of a commit without a copy on disk, makes a table with a row for each of them, and publishes it as
statistics.parquet on the branch `main` of the same dataset. From there it reads the two columns that it needs. It needs
pandas, pyarrow and Pillow.
"""

import io
import sys

import fsspec
import numpy
import pandas
from PIL import Image

import dsv

commit = dsv.open(sys.argv[1])
paths = commit.glob("*/*.png")
images = {path: numpy.asarray(Image.open(io.BytesIO(data))) for path, data in commit.read_many(paths).items()}
table = pandas.DataFrame(
    {
        "path": list(images),
        "label": [path.split("/")[0] for path in images],
        "ink": [image.mean() / 255 for image in images.values()],
        "height": [int(image.any(axis=1).sum()) for image in images.values()],
    }
)

files = fsspec.filesystem("dsv")
with files.transaction as transaction:
    transaction.message = f"statistics of {commit.id[:12]}"
    table.to_parquet(f"dsv://{commit.dataset}/statistics.parquet")

url = f"dsv://{commit.dataset}/statistics.parquet"
ink = pandas.read_parquet(url, columns=["label", "ink"], filesystem=files)
print(ink.groupby("label")["ink"].agg(["count", "mean"]).round(3))

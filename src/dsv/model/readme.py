"""What a person who finds a store reads first."""

from __future__ import annotations


def readme_text() -> str:
    """The content of `README.txt` in a store."""
    return _TEXT


_TEXT = """\
This is a dsv store: versioned datasets, shared and deduplicated.
Please change or delete nothing here by hand: every object is referred to by others.

To use it:  install dsv from its source or from a wheel that your team keeps: pip install dsv_data-*.whl
            (the package called "dsv" on PyPI is another project), then
            dsv datasets --store <where this is>
            dsv clone --store <where this is> DATASET

To read it without dsv:
            dsv ships one file, reader.py, that imports nothing of dsv and restores a dataset
            from a copy of this store in a directory. It needs Python 3.11 with the packages
            blake3, msgpack and zstandard:

            python reader.py STORE_DIR DATASET[@BRANCH, @TAG or @COMMIT] OUT_DIR

            Its source is short, and it is a second description of the format beside docs/format.md
            in dsv's own repository.

What lies here:
  format/    a log of what a program must know to read or write this store
  packs/     the contents of files, and the lists of files, many to an object of about 32 MiB
  index/     which pack holds what
  commits/   one object for each commit; locators/ says where its lists of files lie
  refs/      refs/<dataset>/branches/<name>/..., refs/<dataset>/tags/<name>/... name commits
  runs/      records of jobs that were run on the data
  sessions/, gc/  what writers and the garbage collection owe each other

Every object is named by a hash of its bytes or carries one: file ids are plain BLAKE3-256, so
`b3sum FILE` proves a restored file.
"""
